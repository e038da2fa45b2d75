"""The share of a LlamaIndex program that passes the scheduler."""

from __future__ import annotations

from typing import Final

from llama_index_rag_accel.leaf_table import LLAMA_INDEX
from rag_accel.interception.coverage import Coverage, CoverageRow, OpenMeters

__all__ = ["Coverage", "CoverageRow", "coverage"]

_NAMES = {
    "BaseLLM": "language model",
    "MultiModalLLM": "language model",
    "BaseEmbedding": "embedding",
    "MultiModalEmbedding": "embedding",
    "BaseSparseEmbedding": "embedding",
    "BaseRetriever": "retriever",
    "BasePydanticVectorStore": "vector store",
    "PropertyGraphStore": "graph store",
    "BaseNodePostprocessor": "postprocessor",
}

coverage: Final = OpenMeters(LLAMA_INDEX, _NAMES).coverage
