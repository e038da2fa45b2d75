"""Questions of several callers to a large graph in memory, while it is edited from an event loop.

The graph is drawn at random: names of four words, some of hubs, twelve relations, a vector for each
entity. Each question starts at three entities by name and makes two hops. An edit adds some
triples, one of them with a new name, and removes some of an earlier edit. Edits come at fixed
times; the time of ``add`` is measured on the loop, which does nothing else.

Callers ask the graph itself. In a program with a ``GraphRetrieval`` stage most of a request is
the embedding of its paths, which no edit slows down, so what edits cost would hardly be seen.

Afterwards questions by name with their hops, by words and by vector must find, in the same order,
what a graph finds that is made anew of the triples there are.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import LinkQuery
from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge.paths import extend, start
from rag_accel.engines.knowledge.protocol import Expansion

Triple = tuple[str, str, str]
Found = tuple[tuple[str, ...], ...]

#: triples that an edit adds
_EDIT = 20
_WARM_S = 2.0
_CHECKED = 200


@dataclass(frozen=True, slots=True)
class EditFigures:
    """What callers and edits took.

    Args:
        edits_5s: questions a second beside edits, over the same without.
        add_ms_median, add_ms_p99: how long ``add`` held the event loop.
        merges: how often the edits were merged meanwhile.
        different_answers: questions afterwards that a graph made anew answers otherwise.
    """

    edits_5s: float
    add_ms_median: float
    add_ms_p99: float
    merges: int
    different_answers: int


def random_triples(num: int, seed: int = 0) -> list[Triple]:
    """Return distinct triples over a third as many entities."""
    source = np.random.default_rng(seed)
    size = max(2, num // 3)
    heads = source.integers(0, size, num)
    tails = (size * source.random(num) ** 3).astype(np.int64)
    relations = source.integers(0, 12, num)
    rows = zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)
    return list(dict.fromkeys((_name(a), f"relation {r}", _name(b)) for a, r, b in rows))


def ask(graph: MemoryGraph, names: Sequence[str]) -> Found:
    """Return the paths of two hops from entities of these names."""
    view = graph.view()
    paths = start(view, view.find([LinkQuery(3, names=tuple(names))])[0])
    for _ in range(2):
        edges = view.expand([Expansion(paths.frontier)])[0]
        paths = extend(paths, edges, 256)
    return tuple((*path.entities, *path.relations) for path in paths.walked())


def edit_figures(
    num_triples: int = 300_000, callers: int = 8, seconds: float = 60.0, edits_a_second: float = 5.0
) -> EditFigures:
    """Measure callers without edits for a third of the time, then beside edits."""
    held = random_triples(num_triples)
    graph = MemoryGraph(held)
    graph.embed(_vectors)
    names = sorted({one[0] for one in held})
    ask(graph, names[:3])
    with _Callers(graph, names, callers) as running:
        time.sleep(_WARM_S)
        alone = running.rate(seconds / 3)
        merges = graph.merges
        times_ms: list[float] = []
        editing = threading.Thread(
            target=lambda: asyncio.run(_edit(graph, names, seconds, edits_a_second, times_ms))
        )
        editing.start()
        beside = running.rate(seconds)
        editing.join()
    merges = graph.merges - merges
    different = _different(graph, names)
    p99 = float(np.percentile(times_ms, 99))
    return EditFigures(beside / alone, statistics.median(times_ms), p99, merges, different)


def _different(graph: MemoryGraph, names: Sequence[str]) -> int:
    """Return how many questions a graph made anew answers otherwise."""
    made = MemoryGraph(graph.triples())
    for one in (graph, made):
        one.embed(_vectors)
    source = random.Random(1)
    num = 0
    for _ in range(_CHECKED):
        some = source.sample(names, 3)
        words = " ".join(some[0].split()[:2] + some[1].split()[1:])
        queries = [
            LinkQuery(10, text=f"{words} new"),
            LinkQuery(10, vector=_vectors([f"{some[2]}?"])[0]),
        ]
        num += ask(graph, some) != ask(made, some)
        num += sum(_found(graph, query) != _found(made, query) for query in queries)
    return num


def _found(graph: MemoryGraph, query: LinkQuery) -> Sequence[str]:
    view = graph.view()
    return view.entity_names(view.find([query])[0])


def _vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a vector for each text, some of them alike: ``[len(texts), 16], float32``."""
    drawn = np.random.default_rng(3).normal(size=(2**12, 16)).astype(np.float32)
    return drawn[[zlib.crc32(text.encode()) % len(drawn) for text in texts]]


async def _edit(
    graph: MemoryGraph, names: Sequence[str], seconds: float, a_second: float, times_ms: list[float]
) -> None:
    source = random.Random(2)
    began, last = time.perf_counter(), list[Triple]()
    for number in range(int(seconds * a_second)):
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        added = [(f"New {number}", "relation 3", source.choice(names))]
        added += [
            (source.choice(names), f"relation {source.randrange(12)}", source.choice(names))
            for _ in range(_EDIT - 1)
        ]
        before = time.perf_counter()
        graph.add(added)
        times_ms.append((time.perf_counter() - before) * 1e3)
        graph.set_vectors([added[0][0]], _vectors([added[0][0]]))
        graph.remove(last[:2])
        last = added


class _Callers:
    """Threads that ask one question after the other."""

    def __init__(self, graph: MemoryGraph, names: Sequence[str], num: int) -> None:
        self._graph, self._names = graph, names
        self._counts = [0] * num
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in range(num)]

    def __enter__(self) -> _Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def rate(self, seconds: float) -> float:
        """Return how many questions a second are answered from now on."""
        before, began = sum(self._counts), time.perf_counter()
        time.sleep(seconds)
        return (sum(self._counts) - before) / (time.perf_counter() - began)

    def _run(self, place: int) -> None:
        source = random.Random(place)
        while not self._is_over.is_set():
            ask(self._graph, source.sample(self._names, 3))
            self._counts[place] += 1


def _name(number: int) -> str:
    return f"entity {number % 997} of {number}"
