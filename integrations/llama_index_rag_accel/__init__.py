"""LlamaIndex programs, accelerated without a change to them."""

from typing import TYPE_CHECKING

from llama_index_rag_accel.integration import INTEGRATION as _INTEGRATION
from rag_accel import shutdown

if TYPE_CHECKING:
    from llama_index_rag_accel.accelerate import accelerate, explain, prepare
    from llama_index_rag_accel.components.embeddings import RagAccelEmbedding
    from llama_index_rag_accel.components.llms import RagAccelLLM
    from llama_index_rag_accel.components.retrievers import (
        RagAccelGraphRetriever,
        RagAccelRetriever,
    )
    from llama_index_rag_accel.components.vector_stores import RagAccelVectorStore
    from llama_index_rag_accel.coverage import coverage
    from rag_accel.interception import activate

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
    "prepare",
    "shutdown",
]

globals().update(_INTEGRATION.verbs())
__getattr__ = _INTEGRATION.component
