"""The engines this package owns, by their public names: they execute primitives.

Nothing is imported before it is used: an engine brings the libraries it needs (extras ``local``,
``fast`` and ``openai``) when its name is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_accel.engines.batching import BatchLimits
    from rag_accel.engines.devices.group import DeviceGroup
    from rag_accel.engines.devices.members import EngineMember
    from rag_accel.engines.devices.plan import MemberLimits
    from rag_accel.engines.devices.process import ProcessMember
    from rag_accel.engines.devices.remote import RemoteMember
    from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine
    from rag_accel.engines.http.options import RemoteOptions
    from rag_accel.engines.knowledge.bolt import BoltGraph
    from rag_accel.engines.knowledge.engine import KnowledgeEngine
    from rag_accel.engines.knowledge.memory import MemoryGraph
    from rag_accel.engines.llm.local.engine import LocalLLMEngine
    from rag_accel.engines.llm.local.local_llm import LocalLLM
    from rag_accel.engines.llm.local.options import LocalOptions
    from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
    from rag_accel.engines.llm.remote.remote_llm import RemoteLLM, RemoteServer
    from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
    from rag_accel.engines.llm.vllm.options import VllmOptions
    from rag_accel.engines.llm.vllm.vllm_llm import VllmLLM
    from rag_accel.engines.ray.engine import RayEngine, RayOptions
    from rag_accel.engines.ray.shards.ray_shards import RayShards
    from rag_accel.engines.ray.shards.shard_files import split_index, write_shards
    from rag_accel.engines.replicas.child_process import ProcessEngine, ProcessOptions
    from rag_accel.engines.replicas.pool import EnginePool
    from rag_accel.engines.replicas.processes import ReplicaOptions
    from rag_accel.engines.rerank.engine import RerankEngine
    from rag_accel.engines.rerank.max_sim import MaxSimScorer
    from rag_accel.engines.rerank.remote import RemoteRerankEngine
    from rag_accel.engines.retrieval import (
        DocumentIndex,
        IndexKind,
        IndexSpec,
        Metric,
        RetrievalEngine,
        load_index,
        save_index,
    )
    from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
    from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec

__all__ = [
    "BatchLimits",
    "BoltGraph",
    "CallableEmbeddingEngine",
    "DeviceGroup",
    "DocumentIndex",
    "EngineMember",
    "EnginePool",
    "HybridEngine",
    "HybridSpec",
    "IndexKind",
    "IndexSpec",
    "KnowledgeEngine",
    "LocalLLM",
    "LocalLLMEngine",
    "LocalOptions",
    "MaxSimScorer",
    "MemberLimits",
    "MemoryGraph",
    "Metric",
    "OpenAICompatibleEngine",
    "ProcessEngine",
    "ProcessMember",
    "ProcessOptions",
    "RayEngine",
    "RayOptions",
    "RayShards",
    "RemoteLLM",
    "RemoteMember",
    "RemoteOptions",
    "RemoteRerankEngine",
    "RemoteServer",
    "ReplicaOptions",
    "RerankEngine",
    "RetrievalEngine",
    "SentenceTransformerEngine",
    "VllmLLM",
    "VllmOptions",
    "VllmServerOptions",
    "load_index",
    "save_index",
    "split_index",
    "write_shards",
]

_HOMES = {
    "BatchLimits": "batching",
    "BoltGraph": "knowledge.bolt",
    "CallableEmbeddingEngine": "embedding.callable_engine",
    "DeviceGroup": "devices.group",
    "EngineMember": "devices.members",
    "EnginePool": "replicas.pool",
    "HybridEngine": "retrieval.hybrid.engine",
    "HybridSpec": "retrieval.hybrid.rankings",
    "KnowledgeEngine": "knowledge.engine",
    "LocalLLM": "llm.local.local_llm",
    "LocalLLMEngine": "llm.local.engine",
    "LocalOptions": "llm.local.options",
    "MemberLimits": "devices.plan",
    "MemoryGraph": "knowledge.memory",
    "MaxSimScorer": "rerank.max_sim",
    "OpenAICompatibleEngine": "llm.remote.engine",
    "ProcessEngine": "replicas.child_process",
    "ProcessMember": "devices.process",
    "ProcessOptions": "replicas.child_process",
    "RayEngine": "ray.engine",
    "RayOptions": "ray.engine",
    "RayShards": "ray.shards.ray_shards",
    "RemoteLLM": "llm.remote.remote_llm",
    "RemoteMember": "devices.remote",
    "RemoteOptions": "http.options",
    "RemoteRerankEngine": "rerank.remote",
    "RemoteServer": "llm.remote.remote_llm",
    "ReplicaOptions": "replicas.processes",
    "RerankEngine": "rerank.engine",
    "SentenceTransformerEngine": "embedding.engine",
    "VllmLLM": "llm.vllm.vllm_llm",
    "VllmOptions": "llm.vllm.options",
    "VllmServerOptions": "llm.remote.vllm_server_options",
    "split_index": "ray.shards.shard_files",
    "write_shards": "ray.shards.shard_files",
}
"""Where a name is defined, below this package; the others are those of ``retrieval``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'retrieval')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
