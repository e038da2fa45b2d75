"""Run graphs in every way there is, on fakes, and see that nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import PrimitiveKind
from rag_accel.testing import FAKE_PROFILE, FakeAsyncCall, FakeEngine, FakeSyncCall, compute

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; never how long something may take."""


class Gate:
    """Compute only while open, and tell how many computations have come to it."""

    def __init__(self, is_open: bool = False) -> None:
        self._entered = threading.Semaphore(0)
        self._opened = threading.Event()
        if is_open:
            self._opened.set()

    def __call__(self, payload: Any = None) -> Any:
        self._entered.release()
        assert self._opened.wait(PATIENCE_S), "nobody opened the gate"
        return compute(payload)

    def wait_until_entered(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self.open()


class Forgetful(FakeEngine):
    """Keep no record of what it served: it would pin all of it."""

    def step(self, budget: Any) -> Any:
        outputs = super().step(budget)
        self.served.clear()
        self.calls.clear()
        return outputs


@contextmanager
def opened(**parts: Any) -> Iterator[Accelerator]:
    """Open an accelerator; in the end nothing may live in it and no error of ours have happened."""
    parts.setdefault("shutdown_s", PATIENCE_S)
    with Accelerator(**parts) as accelerator:
        yield accelerator
        become_idle(accelerator)
        assert internal_errors(accelerator) == 0


def become_idle(accelerator: Accelerator) -> None:
    """Fail unless nothing lives any more, once running steps have come back."""
    for _ in range(4000):
        if accelerator.is_idle:
            return
        threading.Event().wait(0.005)
    raise AssertionError("something lives on")


def internal_errors(accelerator: Accelerator) -> int:
    """Return how many errors of our own were survived."""
    return accelerator._driver.internal_errors  # pyright: ignore[reportPrivateUsage]


def settle(accelerator: Accelerator) -> None:
    """Return once everything posted so far was dealt with."""
    accelerator._driver.ask(lambda: None)  # pyright: ignore[reportPrivateUsage]


def reply(prompt: str) -> str:
    """Answer as the fake engine does."""
    return f"reply to: {prompt}"


DECODER = replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}))
"""An engine that reads its prompt while it decodes; the others prefill in steps of their own."""

LLMS: dict[str, Callable[[], Any]] = {
    "owned": FakeEngine,
    "owned, in steps": lambda: FakeEngine(steps=3),
    "owned, without prefill": lambda: FakeEngine(DECODER, steps=2),
    "sync": lambda: FakeSyncCall(reply),
    "async": lambda: FakeAsyncCall(reply),
}


def _run(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    return acc.run(graph, **inputs)


def _run_with_deadline(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    return acc.run(graph, deadline_s=PATIENCE_S, **inputs)


def _run_in_a_loop(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    async def main() -> Any:
        return acc.run(graph, **inputs)

    return asyncio.run(main())


def _arun(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    return asyncio.run(acc.arun(graph, **inputs))


def _submit(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    return acc.submit(graph, **inputs).result(PATIENCE_S)


def _stream(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    return "".join(acc.stream(graph, **inputs))


def _astream(acc: Accelerator, graph: RAGraph, **inputs: Any) -> Any:
    async def main() -> str:
        return "".join([text async for text in acc.astream(graph, **inputs)])

    return asyncio.run(main())


WAYS: dict[str, Callable[..., Any]] = {
    "run": _run,
    "run with deadline": _run_with_deadline,
    "run in a loop": _run_in_a_loop,
    "arun": _arun,
    "submit": _submit,
}
"""Give the result of a graph."""

TEXT_WAYS: dict[str, Callable[..., Any]] = {**WAYS, "stream": _stream, "astream": _astream}
"""Give the result of a graph whose result is a text."""


def chain(*stages: Callable[[RAGraph, str], object], **options: Any) -> RAGraph:
    """Return a graph of stages ``s0``, ``s1``, ... one after the other."""
    graph = RAGraph(**options)
    names = [f"s{place}" for place in range(len(stages))]
    for name, add in zip(names, stages, strict=True):
        add(graph, name)
    for source, target in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(source, target)
    return graph


def function_graph(fn: Callable[..., Any]) -> RAGraph:
    """Return a graph of one function of ``input``."""
    return chain(lambda graph, name: graph.add_function(name, fn, inputs="input"))


def generation_graph(prompt: str = "{input}") -> RAGraph:
    """Return a graph of one generation."""
    return chain(lambda graph, name: graph.add_generation(name, prompt=prompt))
