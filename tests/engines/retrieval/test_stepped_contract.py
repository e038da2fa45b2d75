"""The rules of every engine, on searches that are read piece by piece."""

from __future__ import annotations

import numpy as np

from rag_accel.engine_api import Document, EngineRequest, PrimitiveKind, SearchQuery, WorkId
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.testing import EngineContract


def _search(id: str, vector: np.ndarray, k: int) -> EngineRequest:
    query = SearchQuery(vector.astype(np.float32), k)
    return EngineRequest(WorkId(id), "r", PrimitiveKind.SEARCHING, query)


class TestSteppedContract(EngineContract):
    """Run the rules on an index with clusters, every search of which is cut."""

    def make_engine(self) -> RetrievalEngine:
        spec = IndexSpec(4, kind=IndexKind.IVF, num_clusters=10, nprobe=2, train_size=200)
        index = DocumentIndex(spec)
        documents = [Document(str(number), f"text {number}") for number in range(200)]
        index.add(documents, np.random.default_rng(0).standard_normal((200, 4)))
        return RetrievalEngine(index, sliced_from_s=0.0)

    def make_request(self, number: int) -> EngineRequest:
        return _search(f"w{number}", np.random.default_rng(number).standard_normal(4), 2 + number)

    def make_bad_request(self) -> EngineRequest:
        return _search("bad", np.ones(3), 1)
