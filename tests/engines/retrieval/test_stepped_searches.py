"""Searches that are read in pieces find what one call finds, and short ones pass long ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from forked_child import in_child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    Provisional,
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
    stepped_searches,
)
from rag_accel.engines.retrieval.stepped_searches import LEAST_BETWEEN_S, PATIENCE_S
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.testing import EngineContract

COUNT, DIMENSION, CLUSTERS = 800, 8, 40
#: seconds of a search of every cluster
ALL_S = 0.1
NUMBER_S = ALL_S / (COUNT * DIMENSION)
#: whole numbers, so that many scores are equal
VECTORS = np.random.default_rng(5).integers(-2, 3, (COUNT, DIMENSION)).astype(np.float32)
FAR = np.full((1, DIMENSION), 50, np.float32)
EIGHTH = StepBudget(time_s=ALL_S / 8, threads=2)


class Clock:
    """A clock that reading vectors moves."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give each number that is read the same time."""
    clock, advance = Clock(), IvfVectors.advance

    def timed(self: IvfVectors, pieces: Sequence[Any], threads: int) -> None:
        advance(self, pieces, threads)
        clock.now += NUMBER_S * DIMENSION * sum(piece.num_vectors for piece in pieces)

    monkeypatch.setattr(stepped_searches, "time", clock)
    monkeypatch.setattr(stepped_searches, "_FIRST_GUESS_S", NUMBER_S)
    monkeypatch.setattr(stepped_searches, "LONGER_DIGITS", -99.0)  # each seems long
    monkeypatch.setattr(IvfVectors, "advance", timed)
    return clock


def index_of(count: int = COUNT, **spec: Any) -> DocumentIndex:
    chosen = {"train_size": COUNT, "num_clusters": CLUSTERS, "nprobe": CLUSTERS, **spec}
    index = DocumentIndex(IndexSpec(DIMENSION, Metric.L2, IndexKind.IVF, **chosen))
    documents = [Document(f"d{n}", "", {"tenant": n % 2}) for n in range(count)]
    index.add(documents, VECTORS[:count])
    return index


@pytest.fixture
def engine() -> RetrievalEngine:
    return RetrievalEngine(index_of(), max_threads=2)


def search(
    name: str,
    row: int = 0,
    *,
    provisional: bool = False,
    request: str = "r",
    namespace: str = "",
    **query: Any,
) -> EngineRequest:
    payload = SearchQuery(VECTORS[row] + np.float32(0.5), **{"k": 5, **query})
    named = WorkId(name), request, PrimitiveKind.SEARCHING, payload, namespace
    return EngineRequest(*named, provisional=provisional)


def whole(engine: RetrievalEngine, request: EngineRequest) -> tuple[Any, ...]:
    query = request.payload
    return tuple(engine.index.search([query.vector], query.k, query.where, query.nprobe)[0])


def steps(
    engine: RetrievalEngine, budget: StepBudget = EIGHTH, most: int = 100
) -> Iterator[list[EngineOutput]]:
    """Step until nothing is held any more."""
    for _ in range(most):
        yield list(engine.step(budget))
        if not engine._held and not engine._pending:
            return
    raise AssertionError("searches never end")


work = st.builds(
    lambda row, k, nprobe, tenant, provisional, request, namespace: {
        "row": row, "k": k, "nprobe": nprobe, "provisional": provisional,
        "request": request, "namespace": namespace,
        "where": None if tenant is None else {"tenant": tenant},
    },
    st.integers(0, COUNT - 1), st.sampled_from([0, 1, 5, 900]),
    st.sampled_from([None, 1, 7, 20, 99]), st.sampled_from([None, None, 0, 1]), st.booleans(),
    st.sampled_from(["r", "r", "s"]), st.sampled_from(["", "", "tenant"]),
)  # fmt: skip


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    arrivals=st.lists(st.lists(work, max_size=4), min_size=1, max_size=4),
    budgets=st.lists(st.sampled_from([None, 0.0, 0.008, 0.03]), min_size=1, max_size=4),
    edits=st.lists(st.sampled_from(["", "", "add", "delete", "replace"]), max_size=6),
)
def test_steps_find_what_one_call_finds(
    arrivals: list[list[dict[str, Any]]], budgets: list[float | None], edits: list[str]
) -> None:
    engine = RetrievalEngine(index_of(), max_threads=2)
    asked: dict[WorkId, EngineRequest] = {}
    turn = 0
    while turn < len(arrivals) or engine._held:
        coming = arrivals[turn] if turn < len(arrivals) else []
        new = [search(f"{turn} {place}", **one) for place, one in enumerate(coming)]
        asked |= {request.id: request for request in new}
        engine.submit(new)
        for output in engine.step(StepBudget(budgets[turn % len(budgets)], 2)):
            if output.kind == "final":
                assert output.value == whole(engine, asked.pop(output.id))
            else:
                assert (output.kind, output.error) == ("progress", None)
        edit(engine.index, edits[turn] if turn < len(edits) else "", turn)
        turn += 1
        assert turn < 200
    assert not asked


def edit(index: DocumentIndex, how: str, turn: int) -> None:
    if how == "delete":
        index.delete([f"d{number}" for number in range(turn, COUNT, 9)])
    elif how:
        name = f"d{turn}" if how == "replace" else f"new {turn}"
        index.add([Document(name, "", {"tenant": 0})], VECTORS[turn : turn + 1] + np.float32(0.5))


def test_a_short_search_ends_in_the_next_step_beside_long_ones(
    engine: RetrievalEngine, clock: Clock
) -> None:
    engine.submit([search(f"long {row}", row) for row in range(6)])
    assert engine.step(EIGHTH) == []
    engine.submit([search("short", nprobe=1)])
    before = clock.now
    (first, *_) = engine.step(EIGHTH)
    assert (first.id, first.kind) == ("short", "final")
    assert clock.now - before < 1.5 * ALL_S / 8


def test_searches_as_long_as_usual_are_read_to_their_end(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped_searches, "LONGER_DIGITS", 1.0)
    engine.submit([search(f"long {row}", row) for row in range(4)])
    found = [[output.id for output in outputs] for outputs in steps(engine)]
    assert found == [[f"long {row}"] for row in range(4)]


def test_a_search_longer_than_usual_is_cut(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped_searches, "LONGER_DIGITS", 1.0)
    for turn in range(8):
        engine.submit([search(f"short {turn}", nprobe=10)])
        engine.step(StepBudget(None))
    engine.submit([search("long")])
    assert list(engine.step(EIGHTH)) == []
    assert 0 < engine._held[WorkId("long")].scan.num_read < COUNT


def test_each_step_ends_soon_after_its_time(engine: RetrievalEngine, clock: Clock) -> None:
    engine.submit([search(f"long {row}", row) for row in range(4)])
    ended, before = list[str](), clock.now
    for outputs in steps(engine):
        assert clock.now - before <= ALL_S / 8 + 0.01
        ended += [output.id for output in outputs]
        before = clock.now
    assert ended == [f"long {row}" for row in range(4)]


def test_the_least_work_left_is_read_first_but_no_search_starves(
    engine: RetrievalEngine, clock: Clock
) -> None:
    engine.submit([search("long")])
    ended: list[str] = []
    for turn in range(60):
        engine.submit([search(f"half {turn}", turn, nprobe=20)])
        ended += [output.id for output in engine.step(StepBudget(ALL_S / 4))]
        if "long" in ended:
            break
    assert ended.index("long") > 2
    assert clock.now < PATIENCE_S + 2 * ALL_S


def test_a_long_search_waits_for_short_ones_until_it_has_waited_long(
    engine: RetrievalEngine, clock: Clock
) -> None:
    engine.submit([search("long")])
    engine.step(EIGHTH)
    scan = engine._held[WorkId("long")].scan
    read = scan.num_read
    for waited_s, is_read in ((0.0, False), (PATIENCE_S, True)):
        clock.now += waited_s
        engine.submit([search("short", nprobe=1)])
        assert [output.id for output in engine.step(StepBudget(0.0))] == ["short"]
        assert (scan.num_read > read) == is_read


def test_work_that_is_expected_to_end_in_time_is_one_call(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(DocumentIndex, "begin_scans")
    for time_s in (None, 3 * ALL_S):
        engine.submit([search(f"long {row}", row) for row in range(2)])
        outputs = engine.step(StepBudget(time_s))
        assert [output.kind for output in outputs] == ["final", "final"]


@pytest.mark.parametrize("time_s", [None, 0.005, 0.05])
def test_provisional_results_are_the_nearest_that_were_read(
    engine: RetrievalEngine, clock: Clock, time_s: float | None
) -> None:
    request = search("long", 3, provisional=True)
    engine.submit([request])
    reports: list[Provisional] = []
    times, outputs = [0.0], list[EngineOutput]()
    for outputs in steps(engine, StepBudget(time_s, 2)):
        if outputs and outputs[0].kind == "progress":
            (held,) = engine._held.values()
            read = held.scan.clusters[: held.scan.position]
            labels, clusters = held.state.view.vectors.assignments()
            visible = {f"d{label}" for label in labels[np.isin(clusters, read)].tolist()}
            every = engine.index.search([request.payload.vector], COUNT)[0]
            nearest = [hit for hit in every if hit.document.id in visible][:5]
            assert list(outputs[0].value.value) == nearest
            reports.append(outputs[0].value)
            times.append(clock.now)
    assert outputs[-1].value == whole(engine, request)
    found = [round(report.done, 1) for report in reports]
    assert found == [0.1, 0.2, 0.4, 0.6, 0.8]
    assert min(np.diff(times)) >= LEAST_BETWEEN_S
    for report in reports:
        assert report.left_s == pytest.approx((1 - report.done) * ALL_S)
    for before, after in itertools.pairwise(reports):
        is_equal = [h.document.id for h in before.value] == [h.document.id for h in after.value]
        expected = before.unchanged + after.done - before.done if is_equal else 0.0
        assert after.unchanged == pytest.approx(expected)


def test_a_search_of_less_than_40_ms_reports_nothing(engine: RetrievalEngine) -> None:
    engine.submit([search("medium", nprobe=8, provisional=True)])
    assert [[output.kind for output in found] for found in steps(engine, StepBudget())] == [
        ["final"]
    ]


def test_a_search_that_another_waits_for_reports_nothing(engine: RetrievalEngine) -> None:
    engine.submit([search(f"long {row}", row, provisional=True) for row in range(2)])
    kinds = [output.kind for found in steps(engine, StepBudget(0.05)) for output in found]
    assert kinds == ["final", *["progress"] * (len(kinds) - 2), "final"]
    assert len(kinds) > 3  # the other one is alone from then on


def ended(engine: RetrievalEngine, *requests: EngineRequest) -> list[EngineOutput]:
    """Return the outputs of searches that are read in pieces, one after the other."""
    outputs = list[EngineOutput]()
    for request in requests:
        engine.submit([request])
        outputs += [output for found in steps(engine) for output in found]
    return outputs


@pytest.mark.parametrize("first_is_provisional", [True, False])
def test_a_later_search_of_a_request_first_reports_its_last_results(
    engine: RetrievalEngine, first_is_provisional: bool
) -> None:
    first = search("first", 3, k=20, provisional=first_is_provisional)
    assert all(output.value.done > 0 for output in ended(engine, first)[:-1])
    second = search("second", 4, provisional=True)
    report, *_, final = ended(engine, second)
    places = {
        hit.document.id: hit for hit in engine.index.search([second.payload.vector], COUNT)[0]
    }
    last = {hit.document.id for hit in whole(engine, first)}
    assert report.value.done == report.value.unchanged == 0
    assert report.value.left_s == pytest.approx(ALL_S)
    assert list(report.value.value) == [hit for name, hit in places.items() if name in last][:5]
    assert final.value == whole(engine, second)


@pytest.mark.parametrize("changed", ["request", "namespace", "index", "more results"])
def test_no_other_results_are_reported_before_a_search_reads(
    engine: RetrievalEngine, changed: str
) -> None:
    ended(engine, search("first", 3))
    if changed == "index":
        engine.index.add([Document("far", "")], FAR)
    names = {changed: "another"} if changed in ("request", "namespace") else {}
    k = 6 if changed == "more results" else 5
    reports = ended(engine, search("second", 3, k=k, provisional=True, **names))[:-1]
    assert reports
    assert all(report.value.done > 0 for report in reports)


def test_the_clusters_of_the_last_results_are_read_behind_the_four_nearest(
    engine: RetrievalEngine,
) -> None:
    plain, after = search("plain", 9, provisional=True), search("after", 9, provisional=True)
    orders = list[list[int]]()
    for request in (plain, after):
        engine.submit([request])
        engine.step(EIGHTH)
        held = engine._held[request.id]
        orders.append(held.scan.clusters.tolist())
        engine.cancel([request.id])
        ended(engine, search("between", 500))
    clusters = held.state.view.vectors.clusters_of(held.state.seeds)
    holding = dict.fromkeys(clusters.tolist())
    early = [cluster for cluster in holding if cluster not in orders[0][:4]]
    late = [cluster for cluster in orders[0][4:] if cluster not in holding]
    assert early
    assert orders[1] == [*orders[0][:4], *early, *late]
    assert orders[1] != orders[0]


def test_searches_in_pieces_are_counted_and_told(engine: RetrievalEngine) -> None:
    assert engine.describe_parts() == ()
    ended(engine, search("first"))
    reports = ended(engine, search("second", provisional=True))[:-1]
    counts = engine.counts
    assert (counts["searches_in_pieces"], counts["provisional_results"]) == (2, len(reports))
    assert counts["pieces_read"] >= 8 + len(reports) - 1
    told = f"2 searches, {counts['pieces_read']} pieces"
    assert engine.describe_parts() == (f"reads long searches in pieces while others wait: {told}",)


def test_a_search_that_would_stop_early_reports_and_is_read_in_full() -> None:
    engine = RetrievalEngine(index_of(stop=0.9))
    engine.index.calibrate(VECTORS[:400], 5)
    request, plain = search("told", 3, provisional=True), search("plain", 3)
    outputs = ended(engine, request)
    kinds = [output.kind for output in outputs]
    assert kinds == [*["progress"] * (len(kinds) - 1), "final"]
    assert len(kinds) > 2
    assert outputs[-1].value == whole(RetrievalEngine(index_of()), request)
    ended(engine, plain)
    assert engine.counts["searches_in_pieces"] == 1


def test_cancelled_searches_are_forgotten(engine: RetrievalEngine) -> None:
    kept = search("kept", 1)
    engine.submit([search("gone", provisional=True), kept])
    engine.step(EIGHTH)
    assert len(engine._held) == 2
    engine.cancel([WorkId("gone")])
    outputs = [output for found in steps(engine) for output in found]
    assert [(output.id, output.value) for output in outputs] == [("kept", whole(engine, kept))]


@pytest.mark.parametrize("method", ["read", "gather"])
def test_a_search_whose_piece_fails_fails_alone(
    engine: RetrievalEngine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    good, bad = search("good", 1, nprobe=20), search("bad", 2)
    engine.submit([bad, good])
    engine.step(EIGHTH)
    held = engine._held[WorkId("bad")]
    where = held.state.view.vectors._lists if method == "read" else held.state.view.vectors
    plain = getattr(where, method)

    def fails(first: Any, *rest: Any) -> Any:
        if method == "read" and (first == held.scan.query).all(axis=1).any():
            raise MemoryError("no room")
        if method == "gather" and held.scan.is_over:
            raise MemoryError("no room")
        return plain(first, *rest)

    monkeypatch.setattr(where, method, fails)
    ends = {output.id: output for found in steps(engine) for output in found}
    assert isinstance(ends[bad.id].error, MemoryError)
    monkeypatch.undo()
    assert ends[good.id].value == whole(engine, good)


def test_an_ingestion_begins_held_searches_again(engine: RetrievalEngine) -> None:
    request = search("long")
    near = request.payload.vector[None]
    batch = IngestBatch((Document("near", ""),), near)
    ingestion = EngineRequest(WorkId("i"), "r", PrimitiveKind.INGESTION, batch)
    engine.submit([request, ingestion])
    assert [output.id for output in engine.step(EIGHTH)] == ["i"]
    (output,) = engine.step(EIGHTH)
    assert (output.id, output.kind) == ("long", "final")
    assert output.value[0].document.id == "near"


def test_an_index_that_is_trained_while_searches_wait() -> None:
    engine = RetrievalEngine(index_of(COUNT - 1))
    assert not engine.index.is_trained
    request = search("long")
    engine.submit([request])
    engine.index.add([Document("last", "")], FAR)
    assert engine.index.is_trained
    outputs = [output for found in steps(engine) for output in found]
    assert [output.value for output in outputs] == [whole(engine, request)]


def test_more_is_fetched_where_equal_scores_leave_the_cut_open(engine: RetrievalEngine) -> None:
    request = search("long")
    copies = np.repeat(request.payload.vector[None], 20, axis=0)
    documents = [Document(f"copy {number}", "") for number in range(20)]
    engine.index.add(documents, copies)
    engine.index.add(documents[:5], copies[:5])  # which are now the last of their cluster
    engine.submit([request])
    outputs = [output for found in steps(engine) for output in found]
    assert [hit.document.id for hit in outputs[0].value] == [f"copy {at}" for at in range(5)]


def test_an_index_with_codes_is_searched_as_a_whole() -> None:
    engine = RetrievalEngine(index_of(codes="sq8"))
    request = search("long", provisional=True)
    engine.submit([request])
    (output,) = engine.step(EIGHTH)
    assert output.value == whole(engine, request)


def test_edits_of_another_thread_between_any_two_pieces(engine: RetrievalEngine) -> None:
    requests = [search(f"{row}", row) for row in range(40)]
    wanted = {request.id: whole(engine, request) for request in requests}
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.wait(0.0005):
            engine.index.add([Document(f"far {number % 7}", "")], FAR)
            engine.index.delete([f"far {(number + 3) % 7}"])
            number += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for start in range(0, 40, 4):
            engine.submit(requests[start : start + 4])
            for found in steps(engine, StepBudget(0.005, 2), 500):
                for output in found:
                    assert output.value == wanted.pop(output.id)
    finally:
        stop.set()
        thread.join()
    assert not wanted


def test_a_forked_child_goes_on_with_what_was_begun(engine: RetrievalEngine) -> None:
    request = search("long")
    engine.submit([request])
    engine.step(EIGHTH)

    def go_on() -> bool:
        (output,) = [output for found in steps(engine) for output in found]
        return output.value == whole(engine, request)

    assert in_child(go_on)
    assert go_on()


class TestContract(EngineContract):
    """Run the rules of every engine, with searches that take many steps."""

    def make_engine(self) -> RetrievalEngine:
        return RetrievalEngine(index_of())

    def make_request(self, number: int) -> EngineRequest:
        return search(f"w{number}", number, k=2 + number, provisional=True)

    def make_bad_request(self) -> EngineRequest:
        return search("bad", k="three")
