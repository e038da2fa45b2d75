"""What user code raises reaches its caller as the same object, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import (
    TEXT_WAYS,
    WAYS,
    function_graph,
    generation_graph,
    opened,
    reply,
)

from rag_accel import EngineError, GraphError, RAGraph
from rag_accel.testing import FakeAsyncCall, FakeEngine, FakeSyncCall

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
any_text_way = pytest.mark.parametrize("way", TEXT_WAYS.values(), ids=TEXT_WAYS.keys())


class Falsy(Exception):
    """An error that is not true."""

    def __bool__(self) -> bool:
        return False


class Unprintable:
    """A value that no prompt can show."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [LookupError("no"), Falsy("no")], ids=["plain", "falsy"])
@pytest.mark.parametrize("kind", [FakeSyncCall, FakeAsyncCall], ids=["sync", "async"])
@pytest.mark.parametrize("make", [function_graph, None], ids=["function", "borrowed engine"])
@any_text_way
def test_an_error_of_user_code(way: Way, make: Any, kind: Any, error: Exception) -> None:
    def fail(text: str) -> None:
        raise error

    graph = generation_graph() if make is None else make(kind(fail))
    with opened(llm=kind(fail)) as acc:
        with pytest.raises(type(error)) as caught:
            way(acc, graph, input="x")
        assert caught.value is error


@pytest.mark.parametrize("llm", [FakeEngine, lambda: reply], ids=["owned", "borrowed"])
@any_text_way
def test_a_prompt_that_cannot_be_rendered(way: Way, llm: Callable[[], Any]) -> None:
    error = UnicodeError("unprintable")
    with opened(llm=llm()) as acc:
        with pytest.raises(UnicodeError) as caught:
            way(acc, generation_graph(), input=Unprintable(error))
        assert caught.value is error
        assert way(acc, generation_graph(), input="fine") == reply("fine")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_ends_programs_passes_through_run(error: BaseException) -> None:
    def stop(text: str) -> None:
        raise error

    with opened() as acc:
        with pytest.raises(type(error)) as caught:
            acc.run(function_graph(stop), input="x")
        assert caught.value is error


@anyhow
def test_a_value_that_cannot_be_looked_at_ends_its_request(way: Way) -> None:
    class Hidden:
        @property
        def __class__(self) -> type:
            raise LookupError("nothing to see")

    with opened() as acc:
        for _ in range(3):  # and leaves the threads as they were
            with pytest.raises((LookupError, EngineError)):
                way(acc, function_graph(lambda text: Hidden()), input="x")
        assert way(acc, function_graph(str), input="x") == "x"


@anyhow
def test_a_stop_iteration_ends_its_request(way: Way) -> None:
    def stop(text: str) -> None:
        raise StopIteration(5)

    with opened() as acc, pytest.raises((StopIteration, RuntimeError)):
        way(acc, function_graph(stop), input="x")


def test_a_coroutine_that_cancels_itself_cancels_its_caller() -> None:
    async def cancel(text: str) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await acc.arun(function_graph(cancel), input="x")

    with opened() as acc:
        asyncio.run(main())


@anyhow
def test_inputs_must_be_those_of_the_graph(way: Way) -> None:
    with opened(llm=FakeEngine()) as acc:
        for inputs in ({}, {"input": "x", "other": 1}, {"question": "x"}):
            with pytest.raises(GraphError, match="inputs do not fit"):
                way(acc, generation_graph(), **inputs)


@anyhow
def test_a_graph_that_breaks_a_rule_is_refused_before_it_starts(way: Way) -> None:
    graph = RAGraph()
    graph.add_generation("lost", prompt="{nothing}", engine="nobody")
    with opened(llm=FakeEngine()) as acc:
        with pytest.raises(GraphError) as caught:
            way(acc, graph, input="x")
        lines = "\n".join(caught.value.offenders)
        for rule in ("known-engines", "known-values", "entry"):
            assert rule in lines


def test_outputs_must_be_those_of_the_graph() -> None:
    with opened(llm=FakeEngine()) as acc:
        with pytest.raises(GraphError, match="nothing writes these outputs"):
            acc.run(generation_graph(), outputs=["s0", "s1"], input="x")
        with pytest.raises(GraphError, match="nothing writes these outputs"):
            acc.submit(generation_graph(), outputs=["s1"], input="x")
