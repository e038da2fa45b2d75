"""Values of one request: read by name, folded where several stages write one output."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel import GraphError, RAGraph
from rag_accel.requests.values import Values


def values(**inputs: object) -> Values:
    """Return the values of a graph whose stages a, b, c write the reduced output ``all``."""
    graph = RAGraph()
    for name in "abc":
        graph.add_function(name, str, output="all")
    graph.add_reducer("all", lambda left, right: left + right)
    return Values(graph.freeze(), inputs)


def test_a_value_is_the_input_until_a_stage_writes_it() -> None:
    held = values(input="x", all="start")
    assert held.read("input") == "x"
    held.write("input", "a", "y")
    assert held.read("input") == "y"
    assert held.read("all") == "start"
    held.write("all", "b", ["b"])
    assert held.read("all") == ["b"]


def test_a_value_that_was_not_written_is_named_with_those_there_are() -> None:
    with pytest.raises(GraphError, match="before anything wrote it") as caught:
        values(input="x").read("all")
    assert caught.value.where == "all"
    assert caught.value.valid == "input"


WRITES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5)), unique=True, min_size=1, max_size=15
)


@given(WRITES, st.randoms(use_true_random=False))
def test_a_fold_is_by_turn_then_by_stage_whatever_the_order_of_writing(
    writes: list[tuple[str, int]], rng: random.Random
) -> None:
    held = values()
    for stage, turn in rng.sample(writes, len(writes)):
        held.write("all", stage if turn == 1 else f"{stage}#{turn}", [(turn, stage)])
        if rng.random() < 0.5:
            held.snapshot()
    assert held.read("all") == sorted((turn, stage) for stage, turn in writes)


def test_a_fold_is_done_once_for_what_was_written() -> None:
    folds: list[int] = []
    graph = RAGraph()
    graph.add_function("a", str, output="all").add_function("b", str, output="all")
    graph.add_reducer("all", lambda left, right: folds.append(1) or left + right)
    held = Values(graph.freeze(), {})
    held.write("all", "a", 1)
    held.write("all", "b", 2)
    assert not folds
    assert [held.read("all"), held.read("all"), held.snapshot()["all"]] == [3, 3, 3]
    assert len(folds) == 1


def test_readers_and_writers_in_many_threads_do_not_disturb_each_other() -> None:
    held = values(input="x")
    errors: list[BaseException] = []

    def work(stage: str) -> None:
        try:
            for turn in range(1, 200):
                held.write("all", f"{stage}#{turn}", [stage])
                held.write(f"{stage}{turn}", stage, turn)
                held.snapshot()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stage,)) for stage in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(held.read("all")) == ["a"] * 199 + ["b"] * 199 + ["c"] * 199
