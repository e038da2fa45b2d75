"""Searches by 8-bit codes: exact scores of approximate candidates, through every change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    RetrievalEngine,
    load_index,
    save_index,
)
from rag_accel.engines.retrieval.index.file_format import write_parts
from rag_accel.engines.retrieval.vectors.checks import MAX_NORM
from rag_accel.errors import ConfigError, IndexFileError

COUNT, DIMENSION, NPROBE = 2000, 16, 4
HERE = Path(__file__).parent


def drawn(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, DIMENSION)).astype(np.float32)


def filled(metric: Metric, **options: Any) -> DocumentIndex:
    spec = IndexSpec(
        DIMENSION, metric, IndexKind.IVF, num_clusters=20, nprobe=NPROBE, train_size=1000
    )
    index = DocumentIndex(replace(spec, **options))
    documents = [Document(str(number), "", {"n": number % 5}) for number in range(COUNT)]
    index.add(documents, drawn(COUNT, 0))
    assert index.is_trained
    return index


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codes": "sq8"}, "without clusters"),
        ({"codes": "sq4", "kind": "ivf"}, "codes"),
        ({"codes": "sq8", "kind": "ivf", "refine": 0}, "refine"),
    ],
)
def test_codes_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IndexSpec(4, **options)


def test_what_is_returned_has_its_exact_score_in_order(metric: Metric) -> None:
    coded, exact = filled(metric, codes="sq8", refine=1), filled(metric)
    queries = drawn(20, 1)
    every = exact.search(queries, COUNT, nprobe=NPROBE)
    for hits, all_hits in zip(coded.search(queries, 10), every, strict=True):
        scores = {hit.document.id: hit.score for hit in all_hits}
        assert [hit.score for hit in hits] == [scores[hit.document.id] for hit in hits]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(hits) == 10


def test_recall_grows_to_one_with_the_candidates(metric: Metric) -> None:
    queries = drawn(100, 1)
    by_refine = [filled(metric, codes="sq8", refine=n).recall(queries, 10) for n in (1, 2, 400)]
    assert 0.9 < by_refine[0] <= by_refine[1] <= by_refine[2] == 1.0
    assert by_refine[0] < 1.0


def test_recall_counts_what_a_search_misses(metric: Metric) -> None:
    coded, exact, queries = filled(metric, codes="sq8", refine=1), filled(metric), drawn(50, 1)
    ids = [
        [{hit.document.id for hit in hits} for hits in index.search(queries, 10)]
        for index in (coded, exact)
    ]
    share = sum(len(ours & theirs) for ours, theirs in zip(*ids, strict=True)) / 500
    assert coded.recall(queries, 10) == share < 1.0
    assert exact.recall(queries, 10) == 1.0


def test_every_vector_scored_again_is_the_exact_search(metric: Metric) -> None:
    coded, exact, queries = filled(metric, codes="sq8", refine=COUNT), filled(metric), drawn(20, 1)
    for where in (None, {"n": 3}):
        assert coded.search(queries, 7, where) == exact.search(queries, 7, where)


def test_a_query_finds_the_same_alone_and_in_company(metric: Metric) -> None:
    index, queries = filled(metric, codes="sq8", refine=1), drawn(30, 1)
    engine = RetrievalEngine(index)
    counts = [8 + number % 8 for number in range(len(queries))]
    engine.submit(
        [
            EngineRequest(WorkId(str(row)), "r", PrimitiveKind.SEARCHING, SearchQuery(query, count))
            for row, (query, count) in enumerate(zip(queries, counts, strict=True))
        ]
    )
    together = {output.id: list(output.value) for output in engine.step(StepBudget())}
    for row, (query, count) in enumerate(zip(queries, counts, strict=True)):
        assert together[WorkId(str(row))] == index.search(query[None], count)[0]


def test_what_lies_outside_the_visited_clusters_is_found_when_they_hold_too_few(
    metric: Metric,
) -> None:
    index = filled(metric, codes="sq8", nprobe=1)
    (hits,) = index.search(drawn(1, 1), COUNT)
    assert len(hits) == COUNT


def test_codes_follow_the_vectors(metric: Metric) -> None:
    index = filled(metric, codes="sq8")
    far = 50 * np.ones((1, DIMENSION), dtype=np.float32)
    index.add([Document("new", "")], far)  # outside what the codes can show
    assert index.search(far, 1)[0][0].document.id == "new"
    index.add([Document("new", "")], -far)
    assert index.search(-far, 1)[0][0].document.id == "new"
    index.delete(["new"])
    assert index.search(-far, 1)[0][0].document.id != "new"


def test_a_loaded_index_answers_by_the_same_codes(metric: Metric, tmp_path: Path) -> None:
    index, queries = filled(metric, codes="sq8", refine=1), drawn(50, 1)
    index.delete(str(number) for number in range(0, COUNT, 3))
    index.add([Document("late", "")], 9 * drawn(1, 5))
    save_index(index, tmp_path / "index", "")
    loaded = load_index(tmp_path / "index")
    assert loaded.spec == index.spec
    assert loaded.search(queries, 10) == index.search(queries, 10)


def test_codes_of_the_longest_vectors_are_loaded(metric: Metric, tmp_path: Path) -> None:
    index = DocumentIndex(
        IndexSpec(DIMENSION, metric, IndexKind.IVF, num_clusters=4, train_size=100, codes="sq8")
    )
    vectors = drawn(200, 0)
    vectors *= 0.99 * MAX_NORM / np.linalg.norm(vectors, axis=1, keepdims=True)
    index.add([Document(str(number), "") for number in range(200)], vectors)
    save_index(index, tmp_path / "index", "")
    loaded = load_index(tmp_path / "index")
    assert loaded.search(vectors[:20], 5) == index.search(vectors[:20], 5)


@pytest.mark.parametrize("damage", [b"", b"\0" * 4, b"\0" * 12, b"\xff" * 16, None])
def test_ranges_that_cannot_be_are_refused(tmp_path: Path, damage: bytes | None) -> None:
    def write(ranges: bytes | None) -> None:
        documents = b'{"id": "a", "text": "", "metadata": {}}\n'
        parts = {"documents": documents, "vectors": b"\0" * 8, "centroids": b"\0" * 8}
        parts["assignments"] = b"\0" * 8
        if ranges is not None:
            parts["ranges"] = ranges
        spec = {"dimension": 2, "kind": "ivf", "codes": "sq8"}
        fields = {"spec": spec, "count": 1, "num_clusters": 1, "fingerprint": ""}
        with path.open("wb") as file:
            write_parts(file, ((name, [data]) for name, data in parts.items()), fields)

    path = tmp_path / "index"
    write(b"\0" * 16)
    assert len(load_index(path)) == 1, "the forgery itself must be readable"
    write(damage)
    with pytest.raises(IndexFileError, match="damaged"):
        load_index(path)


def test_an_index_gets_and_loses_codes_by_the_spec_of_its_snapshot(metric: Metric) -> None:
    exact, queries = filled(metric), drawn(50, 1)
    state = exact.snapshot()
    coded = DocumentIndex.from_snapshot(
        replace(state, spec=replace(state.spec, codes="sq8", refine=1))
    )
    assert 0.9 < coded.recall(queries, 10) < 1.0
    back = coded.snapshot()
    again = DocumentIndex.from_snapshot(replace(back, spec=replace(back.spec, codes=None)))
    assert again.search(queries, 10) == exact.search(queries, 10)


def test_an_index_that_was_emptied_keeps_the_codes_it_is_given(tmp_path: Path) -> None:
    index = filled(Metric.L2)
    index.delete(str(number) for number in range(COUNT))
    state = index.snapshot()
    coded = DocumentIndex.from_snapshot(replace(state, spec=replace(state.spec, codes="sq8")))
    coded.add([Document("new", "")], drawn(1, 3))
    save_index(coded, tmp_path / "index", "")
    assert load_index(tmp_path / "index").search(drawn(1, 3), 1)[0][0].document.id == "new"


def test_more_candidates_than_there_are_vectors_are_all(metric: Metric) -> None:
    coded, exact, queries = filled(metric, codes="sq8", refine=10**30), filled(metric), drawn(5, 1)
    assert coded.search(queries, 7) == exact.search(queries, 7)


def test_a_file_from_before_there_were_codes_is_loaded() -> None:
    index = load_index(HERE / "data" / "index_without_codes.bin", fingerprint="embedder 1")
    assert index.spec == IndexSpec(
        3, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=1, train_size=5
    )
    (hits,) = index.search([[3.0, 4.0, 5.0]], 2, nprobe=2)
    assert [(hit.document.id, hit.score) for hit in hits] == [("1", 0.0), ("0", -27.0)]
