"""Any sequence of changes leaves an index that answers as a plain dictionary of vectors would."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    load_index,
    save_index,
)

_IDS = st.sampled_from([f"d{number}" for number in range(12)])
_VECTOR = st.tuples(*[st.integers(-2, 2)] * 3)
_FIELD = st.sampled_from([0, 1, None, [0], "missing"])
_ENTRY = st.tuples(_IDS, _VECTOR, _FIELD)


class IndexAgainstDictionary(RuleBasedStateMachine):
    """Compare after each step; whole numbers make every score exact."""

    @initialize(metric=st.sampled_from(Metric), kind=st.sampled_from([*IndexKind, "codes"]))
    def create(self, metric: Metric, kind: str) -> None:
        self.metric = metric
        spec = IndexSpec(3, metric, num_clusters=3, nprobe=1, train_size=6)
        if kind == "codes":  # each search scores everything again, so nothing is missed
            self.index = DocumentIndex(replace(spec, kind="ivf", codes="sq8", refine=14))
        else:
            self.index = DocumentIndex(replace(spec, kind=kind))
        self.model: dict[str, tuple[tuple[int, ...], Document]] = {}

    @rule(entries=st.lists(_ENTRY, max_size=8))
    def add(self, entries: list[tuple[str, tuple[int, ...], Any]]) -> None:
        documents = [
            Document(id, f"{id} {vector}", {} if value == "missing" else {"x": value})
            for id, vector, value in entries
        ]
        self.index.add(documents, np.asarray([vector for _, vector, _ in entries]).reshape(-1, 3))
        for document, (_, vector, _) in zip(documents, entries, strict=True):
            self.model[document.id] = (vector, document)

    @rule(ids=st.lists(_IDS, max_size=5))
    def delete(self, ids: list[str]) -> None:
        assert self.index.delete(ids) == len(set(ids) & self.model.keys())
        for id in ids:
            self.model.pop(id, None)

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "index"
            save_index(self.index, path, "")
            trained = self.index.is_trained
            self.index = load_index(path)
            assert self.index.is_trained == trained

    @rule(query=_VECTOR, k=st.integers(0, 14))
    def search(self, query: tuple[int, ...], k: int) -> None:
        assert self._found(query, k) == self._expected(query)[:k]

    @rule(query=_VECTOR, k=st.integers(0, 14), value=st.sampled_from([0, 1, None, [0], "absent"]))
    def search_filtered(self, query: tuple[int, ...], k: int, value: Any) -> None:
        expected = [hit for hit in self._expected(query) if hit[0].metadata.get("x", ...) == value]
        assert self._found(query, k, {"x": value}) == expected[:k]

    @invariant()
    def has_the_same_documents(self) -> None:
        if hasattr(self, "model"):
            assert len(self.index) == len(self.model)
            expected = [document for _, document in self.model.values()]
            assert self.index.get(self.model) == expected

    def _found(self, query: Any, k: int, where: Any = None) -> list[tuple[Document, float]]:
        (row,) = self.index.search([query], k, where, nprobe=3)
        return [(hit.document, hit.score) for hit in row]

    def _expected(self, query: tuple[int, ...]) -> list[tuple[Document, float]]:
        scored = [
            (document, self._score(query, vector)) for vector, document in self.model.values()
        ]
        return sorted(scored, key=lambda hit: -hit[1])  # stable: equal scores stay in order

    def _score(self, query: tuple[int, ...], vector: tuple[int, ...]) -> float:
        pairs = list(zip(query, vector, strict=True))
        if self.metric is Metric.INNER_PRODUCT:
            return float(sum(a * b for a, b in pairs))
        return -float(sum((a - b) ** 2 for a, b in pairs))


TestIndexAgainstDictionary = IndexAgainstDictionary.TestCase
TestIndexAgainstDictionary.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None
)
