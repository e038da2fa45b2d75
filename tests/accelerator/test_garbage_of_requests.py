"""Inputs, prompts and results of a request are free once it has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accel_harness import (
    WAYS,
    Forgetful,
    become_idle,
    chain,
    function_graph,
    generation_graph,
    opened,
)

Way = Callable[..., Any]


class Payload:
    """Be something to hold a weak reference to."""

    def __init__(self, parent: Any = None) -> None:
        self.parent = parent

    def __str__(self) -> str:
        return "payload"


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    """Only reference counts free anything in these tests, except where a test collects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def refs_after(way: Way, acc: Any, graph: Any) -> list[weakref.ref[Any]]:
    payload = Payload()
    found = way(acc, graph, input=payload)
    refs = [weakref.ref(payload)]
    if isinstance(found, Payload):
        refs.append(weakref.ref(found))
    return refs


@pytest.mark.parametrize("way", [WAYS["run"], WAYS["submit"]], ids=["run", "submit"])
def test_nothing_is_pinned_by_a_request_of_functions(way: Way) -> None:
    graph = chain(
        lambda g, name: g.add_function(name, Payload, inputs="input"),
        lambda g, name: g.add_function(name, Payload, inputs="s0"),
    )
    with opened() as acc:
        refs = refs_after(way, acc, graph)
        become_idle(acc)
        assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("way", [WAYS["run"], WAYS["submit"]], ids=["run", "submit"])
def test_nothing_is_pinned_by_a_request_of_generations(way: Way) -> None:
    with opened(llm=Forgetful()) as acc:
        refs = refs_after(way, acc, generation_graph())
        become_idle(acc)
        assert [ref() for ref in refs] == [None]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_whatever_a_request_pinned_is_garbage(way: Way) -> None:
    graph = chain(
        lambda g, name: g.add_function(name, Payload, inputs="input"),
        lambda g, name: g.add_generation(name, prompt="{s0}"),
    )
    with opened(llm=Forgetful()) as acc:
        refs = refs_after(way, acc, graph)
        become_idle(acc)
        gc.collect()
        assert [ref() for ref in refs] == [None]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_whatever_a_failed_request_pinned_is_garbage(way: Way) -> None:
    refs: list[weakref.ref[Any]] = []

    def fail(payload: Payload) -> None:
        raise LookupError("no")

    def attempt(acc: Any) -> None:
        payload = Payload()
        refs.append(weakref.ref(payload))
        with pytest.raises(LookupError):
            way(acc, function_graph(fail), input=payload)

    with opened() as acc:
        attempt(acc)
        become_idle(acc)
        gc.collect()
        assert refs[0]() is None


def test_whatever_a_cancelled_request_pinned_is_garbage() -> None:
    refs: list[weakref.ref[Any]] = []

    async def never(payload: Payload) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        payload = Payload()
        refs.append(weakref.ref(payload))
        task = asyncio.ensure_future(acc.arun(function_graph(never), input=payload))
        del payload
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with opened() as acc:
        asyncio.run(main())
        become_idle(acc)
        gc.collect()
        assert refs[0]() is None
