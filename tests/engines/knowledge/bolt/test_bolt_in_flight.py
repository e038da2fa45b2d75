"""Several queries of one engine at once: who waits for whom, and what ends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from bolt_fakes import FakeDriver, Sent
from neo4j.exceptions import ClientError, ServiceUnavailable

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineRequest,
    ExpandBatch,
    LinkQuery,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines import BoltGraph, KnowledgeEngine, MemoryGraph
from rag_accel.engines.knowledge import remote
from rag_accel.engines.knowledge.remote import PAST_DEADLINE_S, SILENCE_S
from rag_accel.errors import EngineError, ForkedError
from rag_accel.testing import ManualClock
from rag_accel.testing.checks import threads_left

HUBS = ("hub1", "hub2", "hub3", "hub4", "hub5")
#: a to h have an edge each, hubs more than a shared query reads
TRIPLES = [(name, "r", name + "'") for name in "abcdefgh"] + [
    (hub, "r", f"{hub} {leaf:03}") for hub in HUBS for leaf in range(300)
]
NOW = StepBudget(time_s=0.0)


class Asked:
    """An engine over a fake driver on a clock that stands still, and what it has reported."""

    def __init__(self, **options: Any) -> None:
        self.driver = FakeDriver(TRIPLES)
        self.clock = ManualClock()
        self.graph = BoltGraph(self.driver, shared_edges=256, **options)
        self.engine = KnowledgeEngine(self.graph, max_threads=0, clock=self.clock)
        self.outputs: dict[str, EngineOutput] = {}
        self.paths: dict[str, Any] = {}

    def know(self, *names: str) -> None:
        """Have the paths of no hops from entities."""
        for name in names:
            self._submit(f"link {name}", PrimitiveKind.SEARCHING, LinkQuery(1, names=(name,)))
        self.wait_for(*(f"link {name}" for name in names))
        for name in names:
            self.paths[name] = self.outputs.pop(f"link {name}").value

    def hop(self, *names: str, **settings: Any) -> None:
        """Ask for a hop from entities, each a request of its own by that name."""
        self.know(*(name for name in names if name not in self.paths))
        for name in names:
            batch = ExpandBatch(self.paths[name], fan_out=2)
            self._submit(name, PrimitiveKind.EXPANDING, batch, **settings)

    def wait_for(self, *ids: str) -> None:
        """Step until works have ended."""
        end = time.monotonic() + 20.0
        while not set(ids) <= set(self.outputs):
            assert time.monotonic() < end, f"only {set(self.outputs)} of {set(ids)} ended"
            self.step(StepBudget(time_s=5.0))

    def step(self, budget: StepBudget = NOW) -> None:
        """Step once."""
        for output in self.engine.step(budget):
            self.outputs[output.id] = output

    def meet_hubs(self, *hubs: str) -> None:
        """Have a hop from hubs made, so that they are known as such."""
        self.hop(*hubs)
        self.wait_for(*hubs)
        self.outputs.clear()
        self.driver.sent.clear()

    def hold(self, *names: str) -> dict[str, threading.Event]:
        """Let queries that read the edges of entities wait."""
        held = {name: threading.Event() for name in names}
        self.driver.held.update(held)
        return held

    @property
    def hop_calls(self) -> int:
        """Return how many queries for hops were begun."""
        return self.engine.counts["hop_calls"]

    def _submit(self, name: str, kind: PrimitiveKind, payload: Any, **settings: Any) -> None:
        self.engine.submit([EngineRequest(WorkId(name), name, kind, payload, **settings)])


@pytest.fixture
def asked() -> Iterator[Asked]:
    yield from opened()


def opened(**options: Any) -> Iterator[Asked]:
    """Yield an engine, let all its queries go on and close it."""
    before = set(threading.enumerate())
    asked = Asked(**options)
    yield asked
    for event in asked.driver.held.values():
        event.set()
    asked.engine.close()
    assert not threads_left(before, 30.0)


def names_of(sent: Sequence[Sent]) -> list[list[str]]:
    """Return the entities each query asked edges of, sorted."""
    found = [
        {row["name"] for way in ("leaving", "coming") for row in one.parameters.get(way, ())}
        for one in sent
    ]
    return sorted(sorted(names) for names in found)


def test_a_quick_question_is_answered_while_a_hub_is_read(asked: Asked) -> None:
    asked.know("a", "hub1")
    held = asked.hold("hub1")
    asked.hop("hub1")
    asked.hop("a")
    asked.wait_for("a")
    assert "hub1" not in asked.outputs
    held["hub1"].set()
    asked.wait_for("hub1")
    assert asked.outputs["hub1"].value.texts() == ("hub1 -> r -> hub1 000", "hub1 -> r -> hub1 001")


def test_a_hub_that_is_not_known_yet_keeps_none_of_those_waiting_that_share_its_query(
    asked: Asked,
) -> None:
    asked.know("a", "b", "hub1")
    asked.driver.sent.clear()
    asked.hold("hub1")
    asked.hop("a", "hub1", "b")
    asked.wait_for("a", "b")
    assert names_of(asked.driver.sent[:1]) == [["a", "b", "hub1"]]


def test_a_hub_that_is_known_shares_no_query(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    asked.know("a", "b")
    asked.driver.sent.clear()
    asked.hop("a", "hub1", "b")
    asked.wait_for("a", "b", "hub1")
    assert names_of(asked.driver.sent) == [["a", "b"], ["hub1"]]


def test_a_hub_that_has_lost_its_edges_shares_queries_again(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    asked.driver.triples = TRIPLES[:10]
    asked.meet_hubs("hub1")
    asked.know("a")
    asked.driver.sent.clear()
    asked.hop("a", "hub1")
    asked.wait_for("a", "hub1")
    assert names_of(asked.driver.sent) == [["a", "hub1"]]


def test_hubs_leave_a_query_free_and_wait_for_each_other(asked: Asked) -> None:
    asked.meet_hubs(*HUBS)
    asked.know("a")
    held = asked.hold(*HUBS)
    before = asked.hop_calls
    asked.hop(*HUBS)
    asked.step()
    assert asked.hop_calls - before == 3
    asked.hop("a")
    asked.wait_for("a")
    for event in held.values():
        event.set()
    asked.wait_for(*HUBS)
    assert all(asked.outputs[hub].kind == "final" for hub in HUBS)


def test_requests_for_the_same_hub_share_its_query(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    for name in ("first", "second", "third"):
        asked.paths[name] = asked.paths["hub1"]
    asked.hop("first", "second", "third")
    asked.wait_for("first", "second", "third")
    assert names_of(asked.driver.sent) == [["hub1"]]


def test_what_comes_while_all_lanes_are_taken_shares_the_next_query(asked: Asked) -> None:
    asked.know(*"abcdef")
    asked.driver.sent.clear()
    held = asked.hold("a", "b", "c")
    for name in "abcdef":
        asked.hop(name)
        asked.step()
    held["a"].set()
    asked.wait_for(*"adef")
    assert set(asked.outputs) == {*"adef"}
    # A query is sent by its own thread, which may come late: all were sent once all have ended.
    for event in held.values():
        event.set()
    asked.wait_for(*"bc")
    assert names_of(asked.driver.sent) == [["a"], ["b"], ["c"], [*"def"]]


def test_what_comes_while_a_query_takes_long_does_not_wait_for_it(asked: Asked) -> None:
    asked.know("a", "b")
    asked.hold("a")
    asked.hop("a")
    asked.step()
    asked.hop("b")
    asked.wait_for("b")
    assert "a" not in asked.outputs


def test_a_failed_query_is_asked_again_in_parts_at_once(asked: Asked) -> None:
    asked.know(*"abcdefgh")
    asked.driver.refused = {"a": ClientError("the transaction timed out")}
    asked.driver.failures = [ClientError("the transaction timed out")]
    asked.hold("c")
    asked.driver.sent.clear()
    asked.hop(*"abcdefgh")
    asked.wait_for(*"efgh")
    # The part of c still runs, so none of the others waited for it.
    assert "c" not in asked.outputs
    asked.driver.held["c"].set()
    asked.wait_for(*"abcdefgh")
    kinds = {name: output.kind for name, output in asked.outputs.items()}
    assert kinds == {"a": "error", **dict.fromkeys("bcdefgh", "final")}
    assert names_of(asked.driver.sent) == sorted(
        [[*"abcdefgh"], [*"ab"], ["a"], ["b"], [*"cd"], [*"ef"], [*"gh"]]
    )


def test_the_query_of_a_hub_that_fails_is_not_repeated(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    asked.paths["other"] = asked.paths["hub1"]
    asked.driver.failures = [ClientError("the transaction timed out")]
    asked.hop("hub1", "other")
    asked.wait_for("hub1", "other")
    assert [asked.outputs[name].kind for name in ("hub1", "other")] == ["error"] * 2
    assert len(asked.driver.sent) == 1


def test_a_server_that_is_gone_ends_all_queries_under_way(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    asked.know("a")
    gone = ServiceUnavailable("gone")
    asked.driver.refused = {"hub1": gone, "a": gone}
    asked.hold("hub1", "a")
    asked.hop("hub1", "a")
    asked.step()
    for event in asked.driver.held.values():
        event.set()
    asked.wait_for("hub1", "a")
    assert [asked.outputs[name].error for name in ("hub1", "a")] == [gone, gone]


def test_cancelled_work_reports_nothing_and_its_query_frees_its_lane(asked: Asked) -> None:
    asked.meet_hubs("hub1", "hub2", "hub3", "hub4")
    held = asked.hold("hub1", "hub2", "hub3")
    asked.hop("hub1", "hub2", "hub3")
    asked.step()
    asked.engine.cancel([WorkId("hub1"), WorkId("hub2"), WorkId("hub3")])
    asked.hop("hub4")
    held["hub1"].set()
    asked.wait_for("hub4")
    held["hub2"].set()
    held["hub3"].set()
    asked.hop("a")
    asked.wait_for("a")
    assert set(asked.outputs) == {"hub4", "a"}


def test_an_id_that_is_used_again_gets_its_own_answer(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    held = asked.hold("hub1")
    asked.hop("hub1")
    asked.step()
    asked.engine.cancel([WorkId("hub1")])
    asked.know("a")
    asked.paths["hub1"] = asked.paths["a"]
    held["hub1"].set()
    asked.hop("hub1")
    asked.wait_for("hub1")
    assert asked.outputs["hub1"].value.texts() == ("a -> r -> a'",)


def test_the_server_ends_a_query_when_nobody_waits_for_it_any_more(asked: Asked) -> None:
    asked.meet_hubs("hub1")
    asked.hop("hub1", deadline=asked.clock.now() + 2.0)
    asked.wait_for("hub1")
    assert asked.driver.sent[-1].timeout_s == pytest.approx(2.0 + PAST_DEADLINE_S)
    asked.hop("a", deadline=asked.clock.now() + 2.0)
    asked.know("b")
    asked.hop("b")
    asked.wait_for("a", "b")
    # One query of both or one of each: what "b" waits for has no deadline.
    assert 30.0 in [sent.timeout_s for sent in asked.driver.sent[-2:]]


def test_a_query_that_the_server_never_ends_is_given_up(asked: Asked) -> None:
    asked.meet_hubs(*HUBS)
    asked.know("a")
    asked.hold(*HUBS)
    asked.hop(*HUBS[:3])
    asked.step()
    asked.hop(*HUBS[3:])
    asked.clock.advance(30.0 + SILENCE_S)
    asked.wait_for(*HUBS[:3])
    assert all(isinstance(asked.outputs[hub].error, EngineError) for hub in HUBS[:3])
    asked.hop("a")
    asked.wait_for("a")
    assert asked.outputs["a"].kind == "final"
    asked.clock.advance(30.0 + SILENCE_S)
    asked.wait_for(*HUBS)
    # As many as may be under way are silent: nothing more is sent.
    asked.hop("b")
    asked.wait_for("b")
    assert isinstance(asked.outputs["b"].error, EngineError)


def test_closing_does_not_wait_for_a_slow_query_and_leaves_no_thread(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "CLOSE_S", 0.0)
    asked.know("a")
    asked.hold("a")
    asked.hop("a")
    asked.step()
    asked.engine.close()
    assert "1 queries to a graph still run" in caplog.text
    assert asked.engine.step(StepBudget()) == []


def test_an_engine_of_the_parent_process_says_so_in_a_child(asked: Asked) -> None:
    asked.know("a")
    assert asked.engine._remote is not None
    asked.engine._remote._pid += 1
    asked.hop("a")
    asked.wait_for("a")
    assert isinstance(asked.outputs["a"].error, ForkedError)


def test_a_server_without_collect_gives_the_same_paths_and_is_found_out_once(asked: Asked) -> None:
    asked.meet_hubs("a", "hub1")
    asked.hop("a", "hub1")
    asked.wait_for("a", "hub1")
    new = {name: asked.outputs.pop(name).value.texts() for name in ("a", "hub1")}
    for old in opened():
        old.driver.has_collect = False
        old.know("a", "hub1")
        for _ in range(2):
            old.outputs.clear()
            old.driver.sent.clear()
            old.hop("a", "hub1")
            old.wait_for("a", "hub1")
            assert {name: old.outputs[name].value.texts() for name in ("a", "hub1")} == new
        assert not any("COLLECT" in one.text for one in old.driver.sent)


def test_only_an_engine_over_a_server_waits_in_its_steps() -> None:
    over_server = BoltGraph(FakeDriver()).as_engine().profile
    in_memory = KnowledgeEngine({"": MemoryGraph()}).profile
    assert (over_server.interruptible, in_memory.interruptible) == (True, False)
    assert Capability.BOUNDS_ITS_WORK in over_server.capabilities
    assert not in_memory.capabilities


def test_a_graph_in_memory_and_one_on_a_server_are_served_by_one_engine() -> None:
    driver = FakeDriver(TRIPLES)
    graphs = {"here": MemoryGraph(TRIPLES), "there": BoltGraph(driver)}
    engine = KnowledgeEngine(graphs)
    query = LinkQuery(1, names=("a",))
    requests = [
        EngineRequest(WorkId(name), name, PrimitiveKind.SEARCHING, query, name) for name in graphs
    ]
    engine.submit(requests)
    outputs = [*engine.step(StepBudget()), *engine.step(StepBudget())]
    assert [output.id for output in outputs] == ["here", "there"]
    assert [list(o.value.view.entity_names(o.value.frontier)) for o in outputs] == [["a"], ["a"]]
    engine.close()


def test_a_query_without_a_thread_fails_and_gives_its_lane_back(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked.know("a")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2 * asked.graph.in_flight):
            asked.hop("a")
            asked.wait_for("a")
            assert isinstance(asked.outputs.pop("a").error, RuntimeError)
    asked.hop("a")
    asked.wait_for("a")
    assert asked.outputs["a"].error is None
