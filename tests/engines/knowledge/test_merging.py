"""Merges beside questions: what is seen meanwhile, and what is left when they fail."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref

import pytest
from edited_graph import settle
from graph_harness import walk

from rag_accel.engine_api import LinkQuery
from rag_accel.engines import KnowledgeEngine, MemoryGraph
from rag_accel.engines.knowledge.changes import ChangedGraph, GraphBase
from rag_accel.engines.knowledge.words import NameWords
from rag_accel.errors import ConfigError, GraphMergeError

HELD = [(f"{number:03}", "r", f"{number + 1:03}") for number in range(100)]


class HeldMerges:
    """Merges that wait, each, until they may go on; the first may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self._error = error
        plain = ChangedGraph.rebuilt

        def merged(over: ChangedGraph) -> GraphBase:
            if threading.current_thread().name == "rag-accel-graph-merge":
                self.began.set()
                assert self.may_end.wait(60)
                error, self._error = self._error, None
                if error is not None:
                    raise error
            return plain(over)

        monkeypatch.setattr(ChangedGraph, "rebuilt", merged)


def asked_graph() -> MemoryGraph:
    """Return a graph with a base, which is merged after three edits."""
    graph = MemoryGraph(HELD, merge_after=3)
    graph.view()
    return graph


def edit(graph: MemoryGraph, first: int, num: int = 3) -> None:
    graph.add([("000", "s", f"new {number}") for number in range(first, first + num)])


def found(graph: MemoryGraph) -> list[str]:
    return walk(KnowledgeEngine(graph), ["000"], 1, relations=("s",), fan_out=1000)


def test_questions_and_edits_go_on_while_edits_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    held, graph = HeldMerges(monkeypatch), asked_graph()
    edit(graph, 0)
    assert held.began.wait(60)
    before = graph.view()
    assert len(found(graph)) == 3
    edit(graph, 3)
    assert len(found(graph)) == 6
    assert before.num_triples == 103
    merges = graph.merges
    held.may_end.set()
    settle(graph)
    assert graph.merges > merges
    assert len(found(graph)) == 6
    assert before.num_triples == 103


def test_an_edit_is_seen_as_soon_as_it_has_ended_also_one_made_during_a_merge() -> None:
    graph = asked_graph()
    for number in range(60):
        edit(graph, number, 1)
        assert len(found(graph)) == number + 1
        if number % 7 == 6:
            graph.remove([("000", "s", f"new {number}")])
            assert len(found(graph)) == number
            edit(graph, number, 1)
    settle(graph)
    assert len(found(graph)) == 60
    assert len(graph) == 160


def test_a_merge_that_fails_loses_nothing_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, graph = HeldMerges(monkeypatch, MemoryError("no room")), asked_graph()
    held.may_end.set()
    merges = graph.merges
    with caplog.at_level(logging.ERROR):
        edit(graph, 0)
        settle(graph)
    assert "could not be merged" in caplog.text
    assert (graph.merges, len(found(graph))) == (merges, 3)
    edit(graph, 3)
    settle(graph)
    assert graph.merges > merges
    assert len(found(graph)) == 6


def test_edits_are_bounded_where_merges_go_on_failing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(over: ChangedGraph) -> GraphBase:
        raise MemoryError("no room")

    graph, plain = asked_graph(), ChangedGraph.rebuilt
    monkeypatch.setattr(ChangedGraph, "rebuilt", fail)
    caplog.set_level(logging.ERROR)
    for num in range(12):
        edit(graph, num, 1)
        assert len(found(graph)) == num + 1
        settle(graph)
    with pytest.raises(GraphMergeError) as caught:
        edit(graph, 12, 1)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert "12 edits" in str(caught.value)
    for change in (
        lambda: graph.remove(entities=["000"]),
        lambda: graph.set_vectors(["000"], [[1.0]]),
    ):
        with pytest.raises(GraphMergeError):
            change()
    assert (len(found(graph)), len(graph), len(graph._edits)) == (12, 112, 12)
    monkeypatch.setattr(ChangedGraph, "rebuilt", plain)
    edit(graph, 12, 1)
    assert len(graph._edits) == 1
    assert len(found(graph)) == 13


def test_a_graph_that_holds_other_triples_takes_edits_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, graph = HeldMerges(monkeypatch, MemoryError("no room")), asked_graph()
    held.may_end.set()
    caplog.set_level(logging.ERROR)
    edit(graph, 0, 5)
    settle(graph)
    assert "could not be merged" in caplog.text
    edit(graph, 5, 15)
    graph.replace([("a", "r", str(number)) for number in range(20)])
    monkeypatch.setattr(ChangedGraph, "rebuilt", None)
    graph.add([("a", "r", "b")])
    assert len(graph._edits) == 21


def test_words_that_are_read_during_a_merge_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, graph = HeldMerges(monkeypatch), asked_graph()
    edit(graph, 0)
    assert held.began.wait(60)
    query = LinkQuery(100, text="new")
    assert len(graph.view().find([query])[0]) == 3
    held.may_end.set()
    settle(graph)
    monkeypatch.setattr(NameWords, "of", None)
    assert len(graph.view().find([query])[0]) == 3


def test_a_graph_is_not_kept_for_its_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    held, graph = HeldMerges(monkeypatch), asked_graph()
    edit(graph, 0)
    assert held.began.wait(60)
    thread = graph._thread
    assert thread is not None
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    held.may_end.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", [MemoryGraph.close, lambda graph: graph.replace([("a", "r", "b")])])
def test_a_merge_of_what_is_not_there_any_more_is_dropped(
    monkeypatch: pytest.MonkeyPatch, end: object
) -> None:
    held, graph = HeldMerges(monkeypatch), asked_graph()
    edit(graph, 0)
    assert held.began.wait(60)
    assert callable(end)
    end(graph)
    held.may_end.set()
    settle(graph)
    assert len(graph) == (0 if end is MemoryGraph.close else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_child_forked_during_a_merge_has_all_edits_and_merges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, graph = HeldMerges(monkeypatch), asked_graph()
    edit(graph, 0)
    assert held.began.wait(60)
    child = os.fork()
    if not child:
        try:
            held.may_end.set()
            is_right = len(found(graph)) == 3
            edit(graph, 3)
            settle(graph)
            os._exit(0 if is_right and len(found(graph)) == 6 else 1)
        finally:
            os._exit(2)
    held.may_end.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    settle(graph)
    assert len(found(graph)) == 3


def test_readers_beside_edits_never_see_half_of_one() -> None:
    graph, is_over, torn = asked_graph(), threading.Event(), list[int]()

    def read() -> None:
        while not is_over.is_set():
            num = len(found(graph))
            if num % 2:
                torn.append(num)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for number in range(0, 30, 2):
        edit(graph, number, 2)
    is_over.set()
    for thread in readers:
        thread.join(60)
    settle(graph)
    assert torn == []
    assert len(found(graph)) == 30


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "8"])
def test_a_bound_of_edits_that_is_none_is_refused(bad: object) -> None:
    with pytest.raises(ConfigError, match="merge"):
        MemoryGraph(merge_after=bad)  # pyright: ignore[reportArgumentType]
