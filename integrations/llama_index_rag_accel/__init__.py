"""LlamaIndex programs, accelerated without a change to them."""

import importlib
from typing import TYPE_CHECKING, Any

try:
    import llama_index.core as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "llama_index_rag_accel needs llama-index-core: pip install 'rag-accel[llama-index]'"
    ) from error

from llama_index_rag_accel import upstream as _upstream
from rag_accel import shutdown

if TYPE_CHECKING or (_missing := _upstream.missing_module()) is None:
    from llama_index_rag_accel.accelerate import accelerate, explain
    from llama_index_rag_accel.coverage import coverage
    from rag_accel.interception import activate

    if _gone := _upstream.missing_methods():
        _upstream.warn_of(_gone, "not all is accelerated")
else:
    from rag_accel.interception.plain import accelerate, activate, coverage, explain

    _upstream.warn_of([_missing], "nothing is accelerated")

if TYPE_CHECKING:
    from llama_index_rag_accel.components.embeddings import RagAccelEmbedding
    from llama_index_rag_accel.components.graph_retriever import RagAccelGraphRetriever
    from llama_index_rag_accel.components.llms import RagAccelLLM
    from llama_index_rag_accel.components.retrievers import RagAccelRetriever
    from llama_index_rag_accel.components.vector_stores import RagAccelVectorStore

__all__ = [
    "RagAccelEmbedding",
    "RagAccelGraphRetriever",
    "RagAccelLLM",
    "RagAccelRetriever",
    "RagAccelVectorStore",
    "accelerate",
    "activate",
    "coverage",
    "explain",
    "shutdown",
]

#: What needs NumPy or a model, by the module that defines it; imported when first asked for.
_LAZY = {
    "RagAccelEmbedding": "components.embeddings",
    "RagAccelGraphRetriever": "components.graph_retriever",
    "RagAccelLLM": "components.llms",
    "RagAccelRetriever": "components.retrievers",
    "RagAccelVectorStore": "components.vector_stores",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
