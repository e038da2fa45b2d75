"""The share of a LlamaIndex program that passes the scheduler."""

from __future__ import annotations

from typing import Final

from llama_index_rag_accel.option_readers import parts_of
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

coverage: Final = OpenMeters("rag_accel_llama_index_coverage", _NAMES, parts_of).coverage
