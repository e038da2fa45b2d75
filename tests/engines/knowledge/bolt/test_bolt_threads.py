"""One graph in a database for several threads and engines: no name is taken for another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import numpy as np
import pytest
from bolt_fakes import FakeDriver

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import EngineRequest, LinkQuery, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines import BoltGraph
from rag_accel.engines.knowledge.bolt.view import SharedNames
from rag_accel.engines.knowledge.paths import Paths

THREADS = 8


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_names_keep_their_ids_and_no_two_share_one_whoever_asks() -> None:
    table, start = SharedNames(), Barrier(THREADS)

    def ask(number: int) -> dict[str, int]:
        start.wait()
        names = [f"name {(place * 7 + number) % 5_000}" for place in range(5_000)]
        return {name: table.id(name) for name in names}

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(ask, range(THREADS)))
    assert all(one == found[0] for one in found)
    assert sorted(found[0].values()) == list(range(5_000)) == list(range(len(table)))
    ids = np.asarray(list(found[0].values()), np.int64)
    assert table.names(ids) == list(found[0])


class InterruptedName(str):
    """A name during whose first look-up another thread asks for the id of another name."""

    table: SharedNames | None = None

    def __hash__(self) -> int:
        table, self.table = self.table, None
        if table is not None:
            thread = Thread(target=table.id, args=("other",))
            thread.start()
            thread.join()
        return super().__hash__()


def test_a_name_does_not_get_the_id_that_another_thread_has_just_given() -> None:
    table, name = SharedNames(), InterruptedName("mine")
    name.table = table
    mine, other = table.id(name), table.id("other")
    assert table.names(np.asarray([mine, other], np.int64)) == ["mine", "other"]


def linked(graph: BoltGraph, name: str) -> Paths:
    """Return the paths of no hops from an entity, found by an engine of its own."""
    engine = graph.as_engine()
    query = LinkQuery(1, names=(name,))
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.SEARCHING, query)])
    (output,) = engine.step(StepBudget())
    engine.close()
    return output.value


def test_engines_over_one_graph_share_no_names() -> None:
    graph = BoltGraph(FakeDriver([("a", "r", "b")]))
    ours, theirs = linked(graph, "a"), linked(graph, "b")
    assert ours.view is not theirs.view
    assert ours.frontier.tolist() == theirs.frontier.tolist() == [0]
    assert ours.view.entity_names(ours.frontier) == ["a"]
    assert theirs.view.entity_names(theirs.frontier) == ["b"]


@pytest.mark.usefixtures("often_switched")
def test_two_accelerators_over_one_graph_find_their_own_paths() -> None:
    triples = [(f"e{n}", "r", f"e{n}.{k}") for n in range(40) for k in range(20)]
    graph = BoltGraph(FakeDriver(triples))
    stage = RAGraph(("input", "names")).add_graph_retrieval(
        "facts", keywords="names", hops=1, top_k=50
    )
    stage.add_edge(START, "facts").add_edge("facts", END)
    start = Barrier(2)

    def ask(tenant: str) -> list[set[str]]:
        def embed(texts: list[str]) -> list[list[float]]:
            return [[1.0, float(len(text))] for text in texts]

        with Accelerator(graph=graph, embedder=embed, namespace=tenant) as accelerator:
            start.wait()
            return [
                {hit.path.text for hit in accelerator.run(stage, input="x", names=[f"e{n}"])}
                for n in range(40)
            ]

    with ThreadPoolExecutor(2) as tenants:
        found = list(tenants.map(ask, ("ours", "theirs")))
    expected = [{f"e{n} -> r -> e{n}.{k}" for k in range(20)} for n in range(40)]
    assert found == [expected, expected]
