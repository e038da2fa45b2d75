"""The suite measures every mechanism on against off, and says when an answer differs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faiss")
pytest.importorskip("langchain_classic")
pytest.importorskip("langgraph")


from bench.ablation import requests, searching, switches
from bench.ablation.measured import ON, Ablation, Gave, ablate, same_vectors, under
from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from bench.emulated.table import DeviceTable
from bench.measure import Pairs
from rag_accel.accelerator import Accelerator
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import EngineRequest, PrimitiveKind, WorkId
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.engines.embedding.microbatches import MicroBatches, Piece
from rag_accel.engines.pending import PendingWork
from rag_accel.engines.rerank.engine import RerankEngine
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.vectors import nearest_clusters
from rag_accel.graph import FrozenRAGraph
from rag_accel.scheduler.driver.turns import Turns
from rag_accel.workflows import advanced_document_qa

#: a device so fast that a request of some 300 tokens takes milliseconds
FAST = DeviceTable("fast", 0.01, 0.001, 0.0, 1e6)


def score(pairs: list[tuple[str, str]]) -> list[float]:
    """Count the words that query and text share, longer texts last."""
    return [len(set(query.split()) & set(text.split())) - len(text) / 1000 for query, text in pairs]


def _plan(graph: FrozenRAGraph, passes: str) -> str:
    index = DocumentIndex(IndexSpec(4))
    with (
        EmulatedDevice(FAST) as device,
        Accelerator(
            llm=EmulatedEngine(device),
            embedder=CallableEmbeddingEngine(lambda texts: [[1.0] * 4 for _ in texts]),
            index=index,
            reranker=RerankEngine(score, pure=True),
            passes=passes,
        ) as accelerator,
    ):
        return accelerator.explain(graph, "e-graph")


_TREE = advanced_document_qa(ingest=True, num_queries=3, synthesis="tree").freeze()
_MEASURED = [
    *((name, _TREE) for name in requests.OF_TREE),
    *((one.name, one.make()) for one in requests.GRAPHS),
]


@pytest.mark.parametrize(("name", "graph"), _MEASURED)
def test_a_pass_is_measured_where_it_rewrites_something(name: str, graph: FrozenRAGraph) -> None:
    lines = _plan(graph, "all").splitlines()
    assert [line for line in lines if line.strip().startswith(f"{name}: ")]
    assert not [
        line
        for line in _plan(graph, requests.all_but(name)).splitlines()
        if line.strip().startswith(f"{name}: ")
    ]


def _ablation(metric: str, off: tuple[float, ...], on: tuple[float, ...]) -> Ablation:
    return Ablation("a pass", "4 threads", metric, Pairs(off, on), 8, 1)


def test_a_gain_above_one_means_that_it_pays() -> None:
    slower = _ablation("latency_ms", (30.0, 20.0, 50.0), (10.0, 10.0, 10.0))
    assert slower.gains == pytest.approx([3.0, 2.0, 5.0])
    assert slower.gain == pytest.approx(3.0)
    rate = _ablation("texts_per_s", (30.0, 20.0, 50.0), (10.0, 10.0, 10.0))
    assert rate.gains == pytest.approx([1 / 3, 0.5, 0.2])
    assert rate.gain == pytest.approx(1 / 3)
    assert rate.key == "a_pass_4_threads"


@pytest.mark.bench
def test_arms_take_turns_after_a_warm_up_that_does_not_count() -> None:
    went: list[str] = []

    def arm(name: str) -> Callable[[int], Gave]:
        def run(turn: int) -> Gave:
            went.append(name)
            return Gave(float(len(went)), [name == "wrong", turn])

        return run

    ones = ablate("a", "latency_ms", arm(ON), {"right": arm("right"), "wrong": arm("wrong")}, 2)
    assert went == [ON, "right", "wrong", ON, "right", "wrong", "right", "wrong", ON]
    assert [(one.mechanism, one.num_answers, one.num_different) for one in ones] == [
        ("right", 4, 0),
        ("wrong", 4, 2),
    ]
    assert ones[0].figures == Pairs((5.0, 7.0), (4.0, 9.0))


def test_vectors_may_differ_as_two_runtimes_do_and_no_more() -> None:
    assert same_vectors([1.0, 0.5], [1.0, 0.5 + 5e-6])
    assert not same_vectors([1.0, 0.5], [1.0, 0.501])


SWITCHES = [
    switch
    for name, switch in vars(switches).items()
    if inspect.isfunction(switch) and switch.__module__ == switches.__name__
    if name[0] != "_" and not inspect.signature(switch).parameters
]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.__name__)
def test_a_switch_finds_what_it_replaces(switch: Any) -> None:
    with switch():
        pass


def test_a_switch_holds_for_its_arm_only() -> None:
    def choice(turn: int) -> Gave:
        return Gave(float(nearest_clusters.MIN_QUERIES), [])

    usual = choice(0).figure
    assert under(switches.clusters_one_by_one, choice)(0).figure == math.inf
    assert choice(0).figure == usual < math.inf


class Run:
    """Compute for ever."""

    def wait(self, timeout_s: float) -> bool:
        return False


class Prepared:
    """Keep on how many threads each micro-batch was started."""

    overlaps = True

    def __init__(self) -> None:
        self.threads: list[int] = []

    def start(self, rows: Any, threads: int) -> Run:
        self.threads.append(threads)
        return Run()


def threads_of_micro_batches() -> list[int]:
    """Start what many callers' texts let start on two threads."""
    pending: PendingWork[str, Any] = PendingWork(lambda request, results: results)
    prepared = Prepared()

    def cut() -> list[Piece]:
        slots = pending.take(10**9)
        parts = [slots[first::8] for first in range(8) if slots[first::8]]
        rows = {slot: row for row, slot in enumerate(slots)}
        return [Piece("query", prepared, rows, part) for part in parts]  # type: ignore[arg-type]

    for number in range(64):
        request = EngineRequest(WorkId(str(number)), "1", PrimitiveKind.EMBEDDING, None)
        pending.add(request, ["a"], [1])
    MicroBatches(pending, cut, 2).fill(2)
    return prepared.threads


def test_without_a_place_in_line_one_micro_batch_is_under_way() -> None:
    assert threads_of_micro_batches() == [2, 2]
    with switches.no_micro_batch_in_line():
        assert threads_of_micro_batches() == [2]


def test_reports_left_to_the_driver_wait_for_it() -> None:
    def dealt_with() -> list[int]:
        seen: list[int] = []
        handler = SimpleNamespace(catch_up=list, state=SimpleNamespace(wake_at=None))
        turns = Turns(handler, MonotonicClock())  # type: ignore[arg-type]
        turns.post_and_drain((None, lambda: seen.append(1)))
        return seen

    assert dealt_with() == [1]
    with switches.reports_to_the_driver():
        assert dealt_with() == []


def test_micro_batches_without_an_order_or_token_bounds_hold_every_text_once() -> None:
    from bench.ablation.switches import embedding_engine

    lengths, limits = [7 * place % 50 + 1 for place in range(70)], BatchLimits(200, 20, 1000)
    for switch in (switches.lengths_mixed, switches.counted_micro_batches):
        with switch():
            batches = embedding_engine.micro_batches(lengths, limits)
        assert sorted(index for one in batches for index in one) == list(range(70))
    assert [len(one) for one in batches] == [32, 32, 6]
    with switches.lengths_mixed():
        mixed = embedding_engine.micro_batches(lengths, limits)
    assert all(len(one) * max(lengths[index] for index in one) <= limits.batch for one in mixed)


def test_arms_take_turns_and_none_follows_another_with_the_same_queries() -> None:
    went: list[tuple[str, int]] = []

    def arm(name: str) -> Any:
        def search(queries: Any, nprobe: int) -> Any:
            went.append((name, queries))
            return f"{name}{queries}"

        return search

    arms, asked = {name: arm(name) for name in "abc"}, [0, 1, 2, 3, 4, 5]
    times, found = searching._in_turn(arms, asked, 5, warm_up=1)  # type: ignore[arg-type]
    turns = [went[start : start + 3] for start in range(3, len(went), 3)]
    assert ["".join(name for name, _ in turn) for turn in turns] == ["abc", "bca", "cab"] * 2
    assert all(len({queries for _, queries in turn}) == 3 for turn in turns)
    for name in "abc":
        assert found[name] == [f"{name}{queries}" for queries in asked]
        assert len(times[name]) == 6


def test_without_depth_order_waiting_decides_in_accelerators_that_are_made_meanwhile() -> None:
    def ageing_s() -> float:
        with Accelerator() as made:
            return made._driver._handler.state.options.ageing_s

    usual = ageing_s()
    with switches.blind_to_depth():
        assert ageing_s() == switches.BLIND_AGEING_S < usual
    assert ageing_s() == usual
