"""Make graphs that search the items of a list, and engines that write the list as they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accel_harness import DECODER, PATIENCE_S, opened

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import GenerationInput, GenerationOutput
from rag_accel.graph.item_lists import ItemReader, ListForm, read_items
from rag_accel.graph.list_functions import ItemFunction, ListFunction
from rag_accel.passes.manager import STATIC_PASSES
from rag_accel.testing import FakeEngine, Faults, compute

ON = "all"
OFF = ",".join(one.name for one in STATIC_PASSES if one.name != "pipeline_decoding")


@dataclass(frozen=True)
class Listed(ListFunction):
    """Read a list of a form; ``count`` items are expected, and as many as there are returned."""

    count: int
    form: ListForm = "auto"

    def __call__(self, text: str) -> tuple[str, ...]:
        return read_items(text, self.form)

    @property
    def item_count(self) -> int:
        return self.count

    def reader(self) -> ItemReader:
        return ItemReader(self.form)


@dataclass(frozen=True)
class Item(ItemFunction):
    """Take an item; where there is none, be empty if ``spare``, else fail."""

    place: int
    spare: bool = True

    def __call__(self, items: tuple[str, ...]) -> str:
        return items[self.place] if not self.spare or self.place < len(items) else ""

    @property
    def item_place(self) -> int:
        return self.place


def fan_out(
    count: int = 2,
    form: ListForm = "auto",
    spare: bool = True,
    read: Callable[[int, ListForm], Listed] = Listed,
) -> RAGraph:
    """Return a graph that searches ``count`` items of a list, and gives what each has found."""
    graph = RAGraph()
    graph.add_generation("expand", prompt="{input}", output="text")
    graph.add_function("list", read(count, form), inputs="text")
    graph.add_edge(START, "expand").add_edge("expand", "list")
    for place in range(count):
        graph.add_function(f"item{place}", Item(place, spare), inputs="list")
        graph.add_retrieval(f"search{place}", query=f"item{place}", top_k=2)
        graph.add_edge("list", f"item{place}").add_edge(f"item{place}", f"search{place}")
    found = [f"search{place}" for place in range(count)]
    graph.add_function("join", lambda *several: several, inputs=["list", *found])
    return graph.add_edge(["list", *found], "join").add_edge("join", END)


def echo(payload: Any) -> Any:
    """Reply to a generation with its prompt; compute all else as fakes do."""
    if isinstance(payload, GenerationInput):
        return GenerationOutput(payload.messages[-1].content)
    return compute(payload)


@contextmanager
def engines(llm: Any, passes: str = ON, **parts: Any) -> Iterator[Accelerator]:
    parts = {"embedder": FakeEngine(), "index": FakeEngine()} | parts
    with opened(llm=llm, passes=passes, **parts) as accelerator:
        yield accelerator


def echoing(
    steps: int = 4, compute: Callable[[Any], Any] = echo, faults: Faults | None = None
) -> FakeEngine:
    return FakeEngine(DECODER, steps=steps, compute=compute, faults=faults)


class Awaited:
    """Compute, and tell how often; ``wait`` fails if it has not happened often enough in time."""

    def __init__(self) -> None:
        self._done = threading.Semaphore(0)

    def __call__(self, payload: Any) -> Any:
        value = compute(payload)
        self._done.release()
        return value

    def wait(self) -> None:
        assert self._done.acquire(timeout=PATIENCE_S), "nothing was searched"
