"""Conditions choose what runs next: branches, loops, wrong answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import WAYS, Gate, opened

from rag_accel import END, START, GraphError, RAGraph

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def decide(answer: Any, targets: Any = None) -> RAGraph:
    graph = RAGraph()
    for name in ("left", "right"):
        graph.add_function(name, lambda text, name=name: f"{name} {text}", inputs="input")
        graph.add_edge(name, END)
    condition = answer if callable(answer) else lambda values: answer
    graph.add_edge(START, condition, targets)
    return graph


@anyhow
def test_a_condition_may_take_both_branches(way: Way) -> None:
    with opened() as acc:
        found = way(acc, decide(["right", "left"]), input="x")
        assert found == {"left": "left x", "right": "right x"}


@anyhow
def test_a_condition_may_be_async(way: Way) -> None:
    async def choose(values: Any) -> str:
        return "left"

    with opened() as acc:
        assert way(acc, decide(choose), input="x") == "left x"


def test_the_result_is_what_led_to_the_end_on_the_path_taken() -> None:
    graph = RAGraph()
    graph.add_function("draft", lambda text: f"draft {text}", inputs="input")
    graph.add_function("better", lambda text: f"better {text}", inputs="draft")
    graph.add_edge(START, "draft")
    graph.add_edge("draft", lambda values: END if values["input"] == "easy" else "better")
    graph.add_edge("better", END)
    with opened() as acc:
        assert acc.run(graph, input="easy") == "draft easy"
        assert acc.run(graph, input="hard") == "better draft hard"


def test_an_answer_of_nothing_ends_there() -> None:
    graph = RAGraph()
    graph.add_function("draft", lambda text: f"draft {text}", inputs="input")
    graph.add_edge(START, "draft").add_edge("draft", lambda values: [], ["draft", END])
    with opened() as acc:
        assert acc.run(graph, input="x") == "draft x"


def test_a_value_that_was_not_written_on_the_path_taken_is_named() -> None:
    graph = RAGraph()
    graph.add_function("maybe", lambda text: text, inputs="input")
    graph.add_function("reader", lambda text: text, inputs="maybe")
    graph.add_edge(START, lambda values: "reader", ["maybe", "reader"])
    graph.add_edge("maybe", "reader").add_edge("reader", END)
    with opened() as acc:
        with pytest.raises(GraphError, match="before anything wrote it"):
            acc.run(graph, input="x")
        with pytest.raises(GraphError, match="before anything wrote it"):
            acc.run(decide("left"), outputs=["right"], input="x")


def test_conditions_that_are_decided_at_the_same_time_grow_one_request_together() -> None:
    """What grows later waits for what grew earlier, so the core must hear of it in that order."""
    graph = RAGraph()
    graph.add_function("join", lambda values: "joined")
    for place in range(8):
        graph.add_function(f"n{place}", lambda text: text, inputs="input")
        graph.add_function(f"m{place}", lambda text: text, inputs="input")
        graph.add_edge(START, f"n{place}")
        graph.add_edge(f"n{place}", lambda values, place=place: f"m{place}", [f"m{place}"])
        graph.add_edge(f"m{place}", "join")
    graph.add_edge("join", END)
    with opened() as acc:
        for _ in range(30):
            assert acc.submit(graph, input="x").result(20) == "joined"


def test_a_failing_branch_stops_a_loop_beside_it() -> None:
    gate = Gate()
    graph = RAGraph()
    graph.add_function("spin", lambda text: gate() or text, inputs="input")
    graph.add_function("fail", lambda text: 1 / 0, inputs="input")
    graph.add_edge(START, ["spin", "fail"])
    graph.add_edge("spin", lambda values: "spin", ["spin", END])
    graph.add_edge("fail", END)
    with opened() as acc, gate:
        handle = acc.submit(graph, input="x")
        with pytest.raises(ZeroDivisionError):
            handle.result(20)
