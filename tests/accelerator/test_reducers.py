"""Reducers fold what several stages write, in a fixed order, as the user's code they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import add, iadd
from typing import Any

import pytest
from accel_harness import LLMS, TEXT_WAYS, WAYS, Gate, generation_graph, opened, reply

from rag_accel import END, START, RAGraph
from rag_accel.testing import FakeEngine

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def fan_in(reducer: Callable[[Any, Any], Any], reader: str | None = None) -> RAGraph:
    """Let three functions write ``parts``, the first stage last; ``reader`` prompts with them."""
    graph = RAGraph()
    order: list[threading.Event] = [threading.Event() for _ in range(3)]
    for place in range(3):

        def part(text: str, place: int = place) -> list[str]:
            if place < 2:
                assert order[place + 1].wait(20)
            order[place].set()
            return [f"{text}{place}"]

        graph.add_function(f"part{place}", part, inputs="input", output="parts")
    graph.add_reducer("parts", reducer)
    names = [f"part{place}" for place in range(3)]
    graph.add_edge(START, names)
    if reader is None:
        graph.add_edge(names, END)
    else:
        graph.add_generation("reader", prompt=reader)
        graph.add_edge(names, "reader").add_edge("reader", END)
    return graph


@pytest.mark.parametrize("reducer", [add, iadd], ids=["pure", "in place"])
@anyhow
def test_values_fold_in_the_order_of_the_stages_not_in_which_they_end(
    way: Way, reducer: Callable[[Any, Any], Any]
) -> None:
    with opened() as acc:
        assert way(acc, fan_in(reducer), input="x") == ["x0", "x1", "x2"]


@pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS.keys())
@pytest.mark.parametrize("way", TEXT_WAYS.values(), ids=TEXT_WAYS.keys())
def test_a_generation_reads_the_folded_value(way: Way, llm: Callable[[], Any]) -> None:
    with opened(llm=llm()) as acc:
        assert way(acc, fan_in(add, "{parts}"), input="x") == reply("x0\nx1\nx2")


@pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS.keys())
@anyhow
def test_a_reducer_that_raises_fails_its_request_with_the_same_object(
    way: Way, llm: Callable[[], Any]
) -> None:
    error = LookupError("cannot fold")

    def broken(left: Any, right: Any) -> Any:
        raise error

    with opened(llm=llm()) as acc:
        for graph in (fan_in(broken), fan_in(broken, "{parts}")):
            with pytest.raises(LookupError) as caught:
                way(acc, graph, input="x")
            assert caught.value is error


@pytest.mark.parametrize("reader", [None, "{parts}"])
def test_a_reducer_runs_on_no_thread_that_others_wait_for(reader: str | None) -> None:
    names: set[str] = set()

    def fold(left: Any, right: Any) -> Any:
        names.add(threading.current_thread().name)
        return left + right

    with opened(llm=FakeEngine()) as acc:
        acc.run(fan_in(fold, reader), input="x")
        acc.submit(fan_in(fold, reader), input="x").result(20)
    allowed = ("MainThread", "rag-accel-call")
    assert names
    assert all(name.startswith(allowed) for name in names)


@pytest.mark.parametrize("reader", [None, "{parts}"])
def test_a_reducer_that_hangs_holds_up_no_other_request(reader: str | None) -> None:
    gate = Gate()

    def hang(left: Any, right: Any) -> Any:
        gate()
        return left + right

    with opened(llm=FakeEngine()) as acc, gate:
        handle = acc.submit(fan_in(hang, reader), input="x")
        waiting = threading.Thread(target=lambda: handle.result(20))
        waiting.start()
        gate.wait_until_entered()
        assert acc.run(generation_graph(), input="y") == reply("y")
        gate.open()
        waiting.join(20)


def test_a_reducer_may_run_a_graph_on_its_own_accelerator() -> None:
    with opened(llm=FakeEngine()) as acc:

        def summarize(left: Any, right: Any) -> str:
            return acc.run(generation_graph(), input=f"{left}{right}")

        expected = reply(reply("['x0']['x1']") + "['x2']")
        assert acc.run(fan_in(summarize, "{parts}"), input="x") == reply(expected)
