"""The paths nearest to a question: plain embedding of every path, and a request to our stage.

Both arms choose among the same candidates. The plain one is given them; ours finds them itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.measure import Pairs
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import LinkQuery
from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge.paths import extend, start
from rag_accel.engines.knowledge.protocol import Expansion
from rag_accel.graph import END, START, RAGraph
from rag_accel.sample import GraphQuestion

HOPS, KEPT, FAN_OUT, MAX_PATHS = 2, 30, 12, 128
BATCH_SIZES = (16, 32, 128)


@dataclass(frozen=True, slots=True)
class PathQuery:
    """A question, and the entities from which paths to its answer are looked for."""

    text: str
    entities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one choice took, the texts that were chosen, best first, and their scores."""

    seconds: float
    texts: tuple[str, ...]
    scores: tuple[float, ...]


def path_queries(stream: Sequence[GraphQuestion], seeds: int) -> list[PathQuery]:
    """Return one query for every ``seeds`` questions of a stream: the first, asked of all seeds."""
    parts = [stream[start : start + seeds] for start in range(0, len(stream), seeds)]
    return [
        PathQuery(part[0].text, tuple(dict.fromkeys(one.seeds[0] for one in part)))
        for part in parts
    ]


def candidates(graph: MemoryGraph, query: PathQuery, hops: int = HOPS) -> tuple[str, ...]:
    """Return the texts of the paths that the stage of ``path_graph`` chooses from."""
    view = graph.view()
    (found,) = view.find([LinkQuery(len(query.entities), names=query.entities)])
    paths = start(view, found)
    for _ in range(hops):
        (edges,) = view.expand([Expansion(paths.frontier, fan_out=FAN_OUT)])
        paths = extend(paths, edges, MAX_PATHS)
    return paths.texts()


def path_graph(seeds: int) -> RAGraph:
    """Return a graph of one stage, from a question and the names of entities to paths."""
    graph = RAGraph(("input", "entities")).add_graph_retrieval(
        "facts",
        keywords="entities",
        seeds=seeds,
        hops=HOPS,
        top_k=KEPT,
        fan_out=FAN_OUT,
        max_paths=MAX_PATHS,
    )
    return graph.add_edge(START, "facts").add_edge("facts", END)


def our_choice(accelerator: Accelerator, graph: RAGraph, query: PathQuery) -> Chosen:
    """Run a request from the question and its entities to the chosen paths."""
    started = time.perf_counter()
    hits = accelerator.run(graph, input=query.text, entities=list(query.entities))
    seconds = time.perf_counter() - started
    texts = tuple(hit.document.text for hit in hits)
    return Chosen(seconds, texts, tuple(hit.score for hit in hits))


def plain_choice(model: Any, batch_size: int, text: str, paths: tuple[str, ...]) -> Chosen:
    """Embed the question and every path, and take those of the highest cosine."""
    started = time.perf_counter()
    scores = _cosines(model, batch_size, text, paths)
    best = np.argsort(-scores, kind="stable")[:KEPT]
    seconds = time.perf_counter() - started
    texts = tuple(paths[place] for place in best.tolist())
    return Chosen(seconds, texts, tuple(scores[best].tolist()))


def _cosines(model: Any, batch_size: int, text: str, paths: tuple[str, ...]) -> Any:
    options = {"batch_size": batch_size, "normalize_embeddings": True, "show_progress_bar": False}
    return model.encode(list(paths), **options) @ model.encode([text], **options)[0]


def best_batch_size(model: Any, paths: tuple[str, ...]) -> int:
    """Return the batch size at which the plain choice among ``paths`` is fastest."""
    plain_choice(model, BATCH_SIZES[0], "", paths)
    taken = {size: plain_choice(model, size, "", paths).seconds for size in BATCH_SIZES}
    return min(taken, key=lambda size: taken[size])


def different(pairs: Pairs[Chosen], tolerance: float) -> int:
    """Return in how many pairs other paths were chosen, or in another order.

    Paths whose scores differ by no more than ``tolerance`` may change places.
    """
    return sum(
        not _alike(plain, other, tolerance)
        for plain, other in zip(pairs.plain, pairs.other, strict=True)
    )


def _alike(plain: Chosen, other: Chosen, tolerance: float) -> bool:
    if len(plain.texts) != len(other.texts):
        return False
    near = np.allclose(plain.scores, other.scores, rtol=0.0, atol=tolerance)
    known = dict(zip(plain.texts, plain.scores, strict=True))
    # What the plain arm did not choose may only stand in for its last, at that one's score.
    last = min(plain.scores, default=0.0)
    pairs = zip(other.texts, other.scores, strict=True)
    return bool(near) and all(abs(known.get(text, last) - at) <= tolerance for text, at in pairs)
