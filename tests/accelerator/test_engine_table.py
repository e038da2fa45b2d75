"""One object is one engine, for as long as it is used."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from accel_harness import PATIENCE_S, become_idle, opened, settle

from rag_accel import Accelerator
from rag_accel.accelerator import Work
from rag_accel.accelerator.engine_table import MAX_BORROWED, OTHERS
from rag_accel.engine_api import Engine, PrimitiveKind, TextBatch
from rag_accel.engines import MemoryGraph
from rag_accel.testing import FakeEngine

EMBEDDING = PrimitiveKind.EMBEDDING


class Closing(FakeEngine):
    """Tell when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_for_good = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed_for_good.set()


class Model:
    """Be an object that an engine runs and keeps alive."""


class Wrapper:
    """Be an object of the user's around a model."""


def own(acc: Accelerator, model: Model, holder: Any, made: list[Closing]) -> str:
    def make() -> Closing:
        made.append(Closing())
        made[-1].model = model  # type: ignore[attr-defined]
        return made[-1]

    return acc.own(model, "embedding", make, "", holder)


def test_an_engine_goes_with_its_last_user() -> None:
    made: list[Closing] = []
    with opened() as acc:
        model, first, second = Model(), Wrapper(), Wrapper()
        name = own(acc, model, first, made)
        assert own(acc, model, second, made) == name
        del first
        gc.collect()
        settle(acc)
        assert not made[0].closed_for_good.is_set()
        del second
        gc.collect()
        assert made[0].closed_for_good.wait(PATIENCE_S)
        assert len(made) == 1


def test_the_model_lives_no_longer_than_its_users() -> None:
    gone = threading.Event()

    class Noted(Model):
        def __del__(self) -> None:
            gone.set()

    made: list[Closing] = []
    with opened() as acc:
        holder = Wrapper()
        own(acc, Noted(), holder, made)
        del holder
        assert made.pop().closed_for_good.wait(PATIENCE_S)
        for _ in range(200):
            gc.collect()
            if gone.wait(0.01):
                break
        assert gone.is_set()


def test_a_model_whose_engine_has_gone_gets_a_new_one() -> None:
    made: list[Closing] = []
    with opened() as acc:
        model = Model()
        first = own(acc, model, Wrapper(), made)  # its holder is gone at once
        gc.collect()
        assert made[0].closed_for_good.wait(PATIENCE_S)
        keeper = Wrapper()
        second = own(acc, model, keeper, made)
        assert second != first
        work = Work(second, EMBEDDING, TextBatch(("x",)))
        assert acc.leaves.compute(acc.anonymous(), work).shape[0] == 1


def test_an_engine_without_a_holder_stays() -> None:
    made: list[Closing] = []
    with opened() as acc:
        model = Model()
        name = own(acc, model, None, made)
        assert own(acc, model, Wrapper(), made) == name
        gc.collect()
        settle(acc)
        assert own(acc, model, None, made) == name
        assert not made[0].closed_for_good.is_set()


def test_a_holder_that_cannot_be_watched_keeps_its_engine() -> None:
    made: list[Closing] = []
    with opened() as acc:
        model = Model()
        name = own(acc, model, (1, 2, 3), made)
        gc.collect()
        settle(acc)
        assert own(acc, model, (1, 2, 3), made) == name


def test_many_short_lived_users_leave_no_threads() -> None:
    with opened() as acc:
        before = threading.active_count()
        for _ in range(50):
            made: list[Closing] = []
            holder = Wrapper()
            name = own(acc, Model(), holder, made)
            work = Work(name, EMBEDDING, TextBatch(("x",)))  # type: ignore[arg-type]
            acc.leaves.compute(acc.anonymous(), work)
            del holder
            assert made[0].closed_for_good.wait(PATIENCE_S)
        become_idle(acc)
        assert threading.active_count() <= before + 2


@pytest.mark.parametrize("closed_first", [True, False])
def test_holders_and_accelerator_may_go_in_any_order(closed_first: bool) -> None:
    made: list[Closing] = []
    acc = Accelerator()
    holder = Wrapper()
    own(acc, Model(), holder, made)
    if closed_first:
        acc.close()
    del holder
    gc.collect()
    acc.close()
    assert made[0].closed_for_good.wait(PATIENCE_S)


def test_names_of_borrowed_engines_are_bounded() -> None:
    with opened() as acc:
        names = {acc.borrow(f"class {number}", EMBEDDING) for number in range(2 * MAX_BORROWED)}
        assert len(names) == MAX_BORROWED + 1
        assert acc.borrow("class 0", EMBEDDING) == "class 0"
        assert acc.borrow("one more", EMBEDDING) == OTHERS
        assert acc.borrow("limited", EMBEDDING, max_concurrency=2) == "limited"


def test_a_component_over_the_graph_of_an_accelerator_is_served_by_its_engine() -> None:
    graph, holder = MemoryGraph([("a", "r", "b")]), Wrapper()

    def make() -> Engine:
        raise AssertionError("there is one already")

    with opened(graph=graph) as acc:
        assert acc.engine_of(graph) == "graph"
        assert acc.own(graph, "graph", make, holder=holder) == "graph"
        del holder
        gc.collect()
        settle(acc)
        assert acc.engine_of(graph) == "graph"  # which stays, being the stages' too
        assert acc.engine_of(MemoryGraph()) is None


def test_an_engine_that_components_made_keeps_its_object() -> None:
    graph, holder = MemoryGraph([("a", "r", "b")]), Wrapper()
    with opened() as acc:
        name = acc.own(graph, "graph", graph.as_engine, holder=holder)
        acc.add_engine("graph", graph)
        assert acc.own(graph, "graph", graph.as_engine, holder=holder) == name
        del holder
        gc.collect()
        settle(acc)
        assert acc.engine_of(graph) is None
