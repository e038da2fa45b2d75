"""An IVF index of FAISS is searched in pieces as by its own search, bit for bit."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import stepped_searches
from rag_accel.engines.retrieval.ivf_index_engine import (
    IvfIndexEngine,
    is_clustered,
    ivf_obstacle,
)
from rag_accel.testing import EngineContract

COUNT, DIMENSION, LISTS = 3_000, 16, 24
METRICS = {"L2": faiss.METRIC_L2, "IP": faiss.METRIC_INNER_PRODUCT}
KINDS = ("Flat", "SQ8", "PQ4x4")
VECTORS = np.random.default_rng(2).standard_normal((COUNT, DIMENSION)).astype(np.float32)
QUERIES = VECTORS + np.float32(0.3)


def index_of(kind: str = "Flat", metric: str = "L2", nprobe: int = 9) -> Any:
    index: Any = faiss.index_factory(DIMENSION, f"IVF{LISTS},{kind}", METRICS[metric])
    index.train(VECTORS)
    index.add(VECTORS)
    index.nprobe = nprobe
    return index


@pytest.fixture(scope="module")
def indexes() -> dict[tuple[str, str], Any]:
    return {(kind, metric): index_of(kind, metric) for kind in KINDS for metric in METRICS}


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each search seem to take long, so that a step reads a piece of one."""
    monkeypatch.setattr(stepped_searches, "_FIRST_GUESS_S", 1.0)
    monkeypatch.setattr(stepped_searches, "LEAST_PIECE_S", 4_000.0)
    monkeypatch.setattr(stepped_searches, "LONGER_DIGITS", -99.0)


def request(name: str, query: Any, k: int = 4, *, provisional: bool = False) -> EngineRequest:
    kind, payload = PrimitiveKind.SEARCHING, SearchQuery(query, k)
    return EngineRequest(WorkId(name), "r", kind, payload, provisional=provisional)


def found(output: Any, metric: int) -> list[tuple[int, float]]:
    assert (output.kind, output.error) == ("final", None)
    sign = -1 if metric == faiss.METRIC_L2 else 1
    return [(int(hit.document.id), sign * hit.score) for hit in output.value]


def alone(index: Any, query: Any, k: int = 4) -> list[tuple[int, float]]:
    numbers, labels = index.search(np.ascontiguousarray(query[None]), k)
    pairs = zip(labels[0].tolist(), numbers[0].tolist(), strict=True)
    return [pair for pair in pairs if pair[0] >= 0]


def ended(engine: IvfIndexEngine, budget: StepBudget, most: int = 300) -> dict[str, Any]:
    """Step to the end of all searches; return their last outputs."""
    outputs: dict[str, Any] = {}
    for _ in range(most):
        outputs |= {str(output.id): output for output in engine.step(budget)}
        if not engine._held and not engine._pending:
            return outputs
    raise AssertionError("searches never end")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(KINDS),
    metric=st.sampled_from(list(METRICS)),
    rows=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=8),
    ks=st.lists(st.sampled_from([1, 4, 30, 900]), min_size=1, max_size=3),
    nprobe=st.sampled_from([1, 9, LISTS, 99]),
    time_s=st.sampled_from([None, 0.0]),
    threads=st.integers(1, 3),
)
def test_searches_in_pieces_find_what_the_index_finds(
    indexes: dict[tuple[str, str], Any],
    kind: str,
    metric: str,
    rows: list[int],
    ks: list[int],
    nprobe: int,
    time_s: float | None,
    threads: int,
) -> None:
    index = indexes[kind, metric]
    index.nprobe = nprobe
    engine = IvfIndexEngine(index)
    asked = [(QUERIES[row], ks[at % len(ks)]) for at, row in enumerate(rows)]
    engine.submit([request(str(at), *one) for at, one in enumerate(asked)])
    outputs = ended(engine, StepBudget(time_s, threads))
    for at, one in enumerate(asked):
        assert found(outputs[str(at)], METRICS[metric]) == alone(index, *one)
    assert (index.nprobe, index.parallel_mode) == (nprobe, 0)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_scores_are_ordered_by_the_index(metric: str) -> None:
    index = index_of(metric=metric)
    index.add(np.repeat(VECTORS[:50], 8, axis=0))
    engine = IvfIndexEngine(index)
    engine.submit([request(str(row), QUERIES[row]) for row in range(50)])
    outputs = ended(engine, StepBudget(0.0, 2))
    for row in range(50):
        assert found(outputs[str(row)], METRICS[metric]) == alone(index, QUERIES[row])


@pytest.mark.usefixtures("blas_in_batches")
@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_is_compared_with_centroids_as_each_alone(kind: str) -> None:
    index = index_of(kind, "IP")
    engine = IvfIndexEngine(index)
    engine.submit([request(str(row), QUERIES[row]) for row in range(60)])
    outputs = ended(engine, StepBudget(None, 2))
    for row in range(60):
        assert found(outputs[str(row)], METRICS["IP"]) == alone(index, QUERIES[row])


@pytest.mark.parametrize("change", ["add", "remove", "nprobe"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_change_between_two_pieces_begins_the_search_again(change: str, at: int) -> None:
    index = index_of(nprobe=LISTS)
    engine, query = IvfIndexEngine(index), QUERIES[7]
    engine.submit([request("a", query)])
    for _ in range(at):
        assert engine.step(StepBudget(0.0)) == []
    if change == "add":
        index.add(query[None])
    elif change == "remove":
        index.remove_ids(np.asarray([alone(index, query)[0][0]], dtype=np.int64))
    else:
        index.nprobe = 2
    assert found(ended(engine, StepBudget(0.0))["a"], faiss.METRIC_L2) == alone(index, query)


@pytest.mark.parametrize("nprobe", [6, LISTS])  # the other list is read, or not
def test_a_vector_that_moves_to_another_list_begins_the_search_again(nprobe: int) -> None:
    index = index_of(nprobe=nprobe)
    engine, query = IvfIndexEngine(index), QUERIES[7]
    engine.submit([request("a", query)])
    engine.step(StepBudget(0.0))
    index.remove_ids(np.asarray([alone(index, query)[0][0]], dtype=np.int64))
    index.add_with_ids(-20 * query[None], np.asarray([COUNT], dtype=np.int64))
    assert index.ntotal == COUNT
    assert found(ended(engine, StepBudget(0.0))["a"], faiss.METRIC_L2) == alone(index, query)


def test_an_error_reaches_its_search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of()
    engine = IvfIndexEngine(index)
    read = engine.read

    def fails(queries: Any, *rest: Any) -> Any:
        if (queries == QUERIES[3]).all(axis=1).any():
            raise RuntimeError("read error")
        return read(queries, *rest)

    monkeypatch.setattr(engine, "read", fails)
    for time_s in (None, 0.0):
        engine.submit([request(str(row), QUERIES[row]) for row in range(6)])
        outputs = ended(engine, StepBudget(time_s, 2))
        if time_s is not None:
            assert isinstance(outputs.pop("3").error, RuntimeError)
        for row, output in outputs.items():  # in one call the index itself is asked again
            assert found(output, faiss.METRIC_L2) == alone(index, QUERIES[int(row)])


def test_a_cancelled_search_is_forgotten() -> None:
    engine = IvfIndexEngine(index_of())
    engine.submit([request("a", QUERIES[0]), request("b", QUERIES[1])])
    engine.step(StepBudget(0.0))
    engine.cancel([WorkId("a")])
    assert list(ended(engine, StepBudget(0.0))) == ["b"]


def test_provisional_results_come_before_the_last() -> None:
    engine = IvfIndexEngine(index_of(nprobe=LISTS))
    engine.submit([request("a", QUERIES[0], provisional=True)])
    outputs = list[EngineOutput]()
    while not outputs or outputs[-1].kind != "final":
        outputs += engine.step(StepBudget())
    assert [output.kind for output in outputs[:-1]] == ["progress"] * 9
    shares = [output.value.done for output in outputs[:-1]]
    assert shares == sorted(shares)
    assert all(len(output.value.value) == 4 for output in outputs[:-1])


def test_other_indexes_are_refused_with_a_reason() -> None:
    limited, odd, empty = index_of(), index_of(), faiss.IndexIVFFlat(
        faiss.IndexFlatL2(DIMENSION), DIMENSION, LISTS
    )  # fmt: skip
    limited.max_codes, odd.parallel_mode = 100, 1024
    hnsw = faiss.index_factory(DIMENSION, f"IVF{LISTS}_HNSW8,Flat")
    hnsw.train(VECTORS)
    l1 = faiss.IndexIVFFlat(faiss.IndexFlat(DIMENSION, faiss.METRIC_L1), DIMENSION, LISTS)
    l1.metric_type = faiss.METRIC_L1
    words = ["max_codes=100", "parallel_mode=0", "not trained", "IndexHNSWFlat", "L2 or inner"]
    for index, word in zip((limited, odd, empty, hnsw, l1), words, strict=True):
        assert is_clustered(index)
        assert word in (ivf_obstacle(index) or "")
    assert ivf_obstacle(index_of()) is None
    assert not is_clustered(faiss.IndexFlatL2(DIMENSION))
    assert not is_clustered(faiss.IndexPreTransform(index_of()))


class TestContract(EngineContract):
    """Run the rules of every engine, with searches that take many steps."""

    def make_engine(self) -> IvfIndexEngine:
        return IvfIndexEngine(index_of())

    def make_request(self, number: int) -> EngineRequest:
        return request(f"w{number}", QUERIES[number], k=2 + number)

    def make_bad_request(self) -> EngineRequest:
        return request("bad", np.ones(3, np.float32))
