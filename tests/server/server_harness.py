"""Serve small graphs whose requests end when, and only when, a test lets them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rag_accel import END, START, RAGraph
from rag_accel.server import Server

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; never how long something may take."""


class Doors:
    """Be a borrowed LLM that answers each prompt once its door is open."""

    def __init__(self, *open_ones: str) -> None:
        self._lock = threading.Lock()
        self._opened: dict[str, threading.Event] = {}
        self._entered: dict[str, threading.Event] = {}
        for name in open_ones:
            self.open(name)

    def __call__(self, prompt: str) -> str:
        self._event(self._entered, prompt).set()
        assert self._event(self._opened, prompt).wait(PATIENCE_S), f"nobody opened {prompt}"
        return prompt.upper()

    def open(self, *names: str) -> None:
        for name in names:
            self._event(self._opened, name).set()

    def wait_until_entered(self, name: str) -> None:
        assert self._event(self._entered, name).wait(PATIENCE_S), f"nobody came to {name}"

    def __enter__(self) -> Doors:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            names = list(self._entered)
        self.open(*names)

    def _event(self, events: dict[str, threading.Event], name: str) -> threading.Event:
        with self._lock:
            return events.setdefault(name, threading.Event())


@contextmanager
def serving(**parts: Any) -> Iterator[Server]:
    """Open a server; in the end nothing may live in its accelerator."""
    with Server(**parts) as server:
        yield server
        become_idle(server)


def become_idle(server: Server) -> None:
    """Fail unless nothing lives any more, once running calls have come back."""
    for _ in range(4000):
        if server.accelerator.is_idle:
            return
        threading.Event().wait(0.005)
    raise AssertionError("something lives on")


def ended(server: Server) -> int:
    """Return how many requests have ended."""
    stats = server.stats()
    return stats["finished"] + stats["failed"] + stats["cancelled"]


def wait_until_ended(server: Server, count: int) -> None:
    """Fail unless so many requests end."""
    for _ in range(4000):
        if ended(server) >= count:
            return
        threading.Event().wait(0.002)
    raise AssertionError(f"{ended(server)} requests have ended, not {count}")


def end_in_order(server: Server, doors: Doors, *names: str) -> None:
    """Open doors in this order, each after the request behind the one before has ended."""
    for count, name in enumerate(names, start=ended(server) + 1):
        doors.open(name)
        wait_until_ended(server, count)


def generation(prompt: str = "{input}") -> RAGraph:
    """Return a graph of one generation."""
    graph = RAGraph()
    graph.add_generation("text", prompt=prompt)
    return graph.add_edge(START, "text").add_edge("text", END)


def function(fn: Callable[..., Any], inputs: str | list[str] = "input") -> RAGraph:
    """Return a graph of one function."""
    names = [inputs] if isinstance(inputs, str) else inputs
    graph = RAGraph(inputs=names)
    graph.add_function("call", fn, inputs=names)
    return graph.add_edge(START, "call").add_edge("call", END)


def folding(reducer: Callable[[Any, Any], Any]) -> RAGraph:
    """Return a graph whose result is folded of two parts."""
    graph = RAGraph()
    for name in ("one", "two"):
        graph.add_function(name, str.upper, inputs="input", output="parts")
    graph.add_reducer("parts", reducer)
    return graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END)
