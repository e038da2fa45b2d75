"""A graph that is edited and, beside it, what it must hold and find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from graph_harness import Triple, edges_of, embed, slow_edges, slow_walk, walk

from rag_accel.engine_api import Direction, LinkQuery
from rag_accel.engines import KnowledgeEngine, MemoryGraph
from rag_accel.engines.knowledge.protocol import Expansion
from rag_accel.engines.knowledge.vectors import unit
from rag_accel.engines.knowledge.words import words_of


def settle(graph: MemoryGraph) -> None:
    """Wait until no merge is under way."""
    thread = graph._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()


def merge(graph: MemoryGraph, beside: Callable[[], None] = lambda: None) -> None:
    """Merge the edits of a graph in this thread, and do something else before that ends."""
    version, edits = graph._made()
    base = version.merged()
    beside()
    graph._install(version, edits, base)


class Expected:
    """What a graph must hold, by the plainest means."""

    def __init__(self) -> None:
        self.triples: dict[Triple, None] = {}
        self.texts: dict[str, str] = {}
        self.embedded: set[str] = set()

    @property
    def names(self) -> list[str]:
        return sorted({end for one in self.triples for end in (one[0], one[2])} | {*self.texts})

    def document(self, name: str) -> str:
        return f"{name}: {text}" if (text := self.texts.get(name)) else name

    def add(self, triples: Iterable[Triple], texts: Mapping[str, str]) -> None:
        self.triples |= dict.fromkeys(triples)
        self.embedded -= {one for one, text in texts.items() if self.texts.get(one) != text}
        self.texts |= texts

    def remove(self, triples: Iterable[Triple], entities: Iterable[str]) -> None:
        gone, dropped = set(entities), set(triples)
        self.triples = {
            one: None for one in self.triples if one not in dropped and not gone & {one[0], one[2]}
        }
        self.texts = {name: text for name, text in self.texts.items() if name not in gone}
        self.embedded &= set(self.names)

    def replace(self, triples: Iterable[Triple], texts: Mapping[str, str]) -> None:
        before, self.triples, self.texts = self.texts, dict.fromkeys(triples), dict(texts)
        same = {one for one in self.embedded if before.get(one) == texts.get(one)}
        self.embedded = same & set(self.names)

    def made(self) -> MemoryGraph:
        """Return a graph made of what there is now."""
        graph = MemoryGraph(self.triples, self.texts)
        names = sorted(self.embedded)
        graph.set_vectors(names, embed([self.document(one) for one in names]))
        return graph


def found(graph: MemoryGraph, query: LinkQuery) -> list[str]:
    view = graph.view()
    return list(view.entity_names(view.find([query])[0]))


def slow_words(names: Sequence[str], text: str) -> dict[str, float]:
    """Return the score of each name that shares a word with a text."""
    words = {name: words_of(name) for name in names}
    having = {
        word: sum(word in own for own in words.values()) for one in words.values() for word in one
    }
    weight = {word: math.log1p(len(names) / num) for word, num in having.items()}
    asked = words_of(text)
    shared = {name: sum(weight[one] for one in asked if one in own) for name, own in words.items()}
    return {
        name: share**2 / sum(map(weight.__getitem__, words[name]))
        for name, share in shared.items()
        if share
    }


def slow_nearest(expected: Expected, vector: np.ndarray, k: int) -> list[str]:
    names = sorted(expected.embedded)
    rows = unit(embed([expected.document(one) for one in names])).astype(np.float64)
    asked = unit(vector[None, :])[0].astype(np.float64)
    scores = {name: float((row * asked).sum()) for name, row in zip(names, rows, strict=True)}
    return sorted(names, key=lambda one: (-scores[one], one))[:k]


def check(
    graph: MemoryGraph, expected: Expected, asked: Sequence[str], hops: int, how: Mapping[str, Any]
) -> None:
    """Compare all that a graph finds with one made anew, and with the slow way.

    Args:
        asked: names to start at, and texts to search by.
        hops: of the paths from them.
        how: the options of an ``ExpandBatch``.
    """
    made = expected.made()
    check_content(graph, made, expected)
    check_edges(graph, expected, how)
    known = [name for name in asked if name in expected.names]
    slow = slow_walk(list(expected.triples), known, hops, **how)
    for one in (graph, made):
        assert walk(KnowledgeEngine(one), known, hops, **how) == slow
    for text in asked:
        check_searches(graph, made, expected, text)


def check_content(graph: MemoryGraph, made: MemoryGraph, expected: Expected) -> None:
    names, view = expected.names, graph.view()
    assert list(view.names) == list(made.view().names) == names
    assert len(graph) == len(made) == len(expected.triples)
    ids = view.find([LinkQuery(100, names=tuple(names))])[0]
    assert list(view.entity_names(ids)) == names
    assert list(view.entity_texts(ids)) == [expected.texts.get(one, "") for one in names]
    waiting = [(one.id, one.text) for one in graph.unembedded()]
    assert waiting == [
        (one, expected.document(one)) for one in names if one not in expected.embedded
    ]


def check_edges(graph: MemoryGraph, expected: Expected, how: Mapping[str, Any]) -> None:
    """Compare the edges of every entity, in each direction, whole and cut off."""
    names, view = expected.names, graph.view()
    ids = view.find([LinkQuery(100, names=tuple(names))])[0]
    directions: tuple[Direction, ...] = ("out", "in", "both")
    for direction in directions:
        for relations, fan_out in ((None, 32), (None, 1), (how["relations"], how["fan_out"])):
            edges = edges_of(view, Expansion(ids, relations, direction, fan_out))
            assert edges == [
                slow_edges(expected.triples, name, relations, direction, fan_out) for name in names
            ]


def check_searches(graph: MemoryGraph, made: MemoryGraph, expected: Expected, text: str) -> None:
    scores = slow_words(expected.names, text)
    vector = embed([text or "x"])[0]
    for k in (1, 3, 100):
        query = LinkQuery(k, names=(text.swapcase(), text))
        assert found(graph, query) == found(made, query)
        by_words = found(graph, LinkQuery(k, text=text))
        assert by_words == found(made, LinkQuery(k, text=text))
        best = sorted(scores.values(), reverse=True)[:k]
        assert np.allclose([scores[name] for name in by_words], best, rtol=1e-12, atol=0)
        if expected.embedded:
            nearest = found(graph, LinkQuery(k, vector=vector))
            assert nearest == found(made, LinkQuery(k, vector=vector))
            assert nearest == slow_nearest(expected, vector, k)
