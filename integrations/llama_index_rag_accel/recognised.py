"""The leaves of LlamaIndex programs that engines here may run."""

from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_rag_accel.indexed_graph import why_not_indexed, why_not_shared
from llama_index_rag_accel.owned_search import why_not_searched
from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel_adapters.llama_index.models import EMBEDDINGS
from rag_accel_adapters.llama_index.proxies import PROXIES


def _why_not_searched(leaf: Any) -> str | None:
    if isinstance(leaf, BasePGRetriever):
        reason = why_not_shared(leaf)
        return "" if reason is None else f"no graph retrieval: {reason}"
    found = why_not_searched(leaf)
    return why_not_indexed(leaf) if found is None else found


RECOGNISED = RecognisedParts(
    BaseEmbedding,
    EMBEDDINGS,
    PROXIES,
    _why_not_searched,
    {
        BaseEmbedding: "RagAccelEmbedding embeds with a local model",
        BasePydanticVectorStore: "RagAccelVectorStore searches on an engine",
        BaseLLM: "RagAccelLLM runs a local model, or calls the servers of a RemoteLLM",
    },
)
