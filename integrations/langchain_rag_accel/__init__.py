"""LangChain programs, accelerated without a change to them."""

import importlib
from typing import TYPE_CHECKING, Any

try:
    import langchain_core as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "langchain_rag_accel needs langchain-core: pip install 'rag-accel[langchain]'"
    ) from error

from langchain_rag_accel import upstream as _upstream
from rag_accel import shutdown

if TYPE_CHECKING or (_missing := _upstream.missing_name()) is None:
    from langchain_rag_accel.accelerate import accelerate, explain
    from langchain_rag_accel.coverage import coverage
    from rag_accel.interception import activate
else:
    from rag_accel.interception.plain import accelerate, activate, coverage, explain

    _upstream.warn_of(_missing)

if TYPE_CHECKING:
    from langchain_rag_accel.components.embeddings import RagAccelEmbeddings
    from langchain_rag_accel.components.graph_retriever import RagAccelGraphRetriever
    from langchain_rag_accel.components.local_chat import ChatRagAccel
    from langchain_rag_accel.components.retrievers import RagAccelRetriever
    from langchain_rag_accel.components.vectorstores import RagAccelVectorStore

__all__ = [
    "ChatRagAccel",
    "RagAccelEmbeddings",
    "RagAccelGraphRetriever",
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
    "ChatRagAccel": "components.local_chat",
    "RagAccelEmbeddings": "components.embeddings",
    "RagAccelGraphRetriever": "components.graph_retriever",
    "RagAccelRetriever": "components.retrievers",
    "RagAccelVectorStore": "components.vectorstores",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
