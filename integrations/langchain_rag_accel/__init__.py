"""LangChain programs, accelerated without a change to them."""

from typing import TYPE_CHECKING

from langchain_rag_accel.integration import INTEGRATION as _INTEGRATION
from rag_accel import shutdown

if TYPE_CHECKING:
    from langchain_rag_accel.accelerate import accelerate, explain, prepare
    from langchain_rag_accel.components.embeddings import RagAccelEmbeddings
    from langchain_rag_accel.components.local_chat import ChatRagAccel
    from langchain_rag_accel.components.retrievers import RagAccelGraphRetriever, RagAccelRetriever
    from langchain_rag_accel.components.vectorstores import RagAccelVectorStore
    from langchain_rag_accel.coverage import coverage
    from rag_accel.interception import activate

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
    "prepare",
    "shutdown",
]

globals().update(_INTEGRATION.verbs())
__getattr__ = _INTEGRATION.component
