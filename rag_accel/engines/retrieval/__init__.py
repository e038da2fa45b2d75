"""Documents found by vector. Imports NumPy only; FAISS is loaded by the first index."""

from rag_accel.engines.retrieval.engine import RetrievalEngine
from rag_accel.engines.retrieval.index.files import IndexHeader, load_index, read_header, save_index
from rag_accel.engines.retrieval.index.store import DocumentIndex, IndexSnapshot, TrainedClusters
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Metric

__all__ = [
    "DocumentIndex",
    "IndexHeader",
    "IndexKind",
    "IndexSnapshot",
    "IndexSpec",
    "Metric",
    "RetrievalEngine",
    "TrainedClusters",
    "load_index",
    "read_header",
    "save_index",
]
