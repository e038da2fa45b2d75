"""Find documents by vector. Imports NumPy only; FAISS is loaded by the first index."""

from rag_accel.engines.retrieval.engine import RetrievalEngine
from rag_accel.engines.retrieval.files import IndexHeader, load_index, read_header, save_index
from rag_accel.engines.retrieval.index_spec import IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.store import DocumentIndex, IndexSnapshot, TrainedClusters

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
