"""Calls of a graph for many requests at once, and the paths that each gets, or keeps of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    ExpandBatch,
    GraphHit,
    GraphPath,
    LinkQuery,
    PruneBatch,
)
from rag_accel.engines.knowledge.paths import Paths, extend, start
from rag_accel.engines.knowledge.protocol import Edges, Expansion, GraphView, Ids
from rag_accel.engines.knowledge.vectors import unit
from rag_accel.engines.knowledge.words import best
from rag_accel.errors import EngineError


def link(view: GraphView, work: Sequence[EngineRequest]) -> Sequence[Paths]:
    """Return the entities that each search means, as paths of no hops; one call of the graph."""
    return started(view, work, view.find(queries(work)))


def hop(view: GraphView, work: Sequence[EngineRequest]) -> Sequence[Paths]:
    """Return the paths of each request with one hop more; one call of the graph."""
    edges = view.expand([expansion(request) for request in work])
    return [extended(request, own) for request, own in zip(work, edges, strict=True)]


def queries(work: Sequence[EngineRequest]) -> list[LinkQuery]:
    """Return the query of each request for a search."""
    return [request.payload for request in work]


def started(
    view: GraphView, work: Sequence[EngineRequest], found: Sequence[Ids]
) -> Sequence[Paths]:
    """Return the paths of no hops from the entities found for each request."""
    return [
        start(view, ids[: query.k], request.namespace)
        for request, query, ids in zip(work, queries(work), found, strict=True)
    ]


def expansion(request: EngineRequest) -> Expansion:
    batch: ExpandBatch = request.payload
    return Expansion(batch.paths.frontier, batch.relations, batch.direction, batch.fan_out)


def question(request: EngineRequest) -> Hashable:
    """Return a key that hops have in common which need the same edges."""
    edges = expansion(request)
    return edges.entities.tobytes(), edges.relations, edges.direction, edges.fan_out


def extended(request: EngineRequest, edges: Edges) -> Paths:
    """Return a request's paths with one hop more, along the edges found for it."""
    batch: ExpandBatch = request.payload
    return extend(batch.paths, edges, batch.limit)


def prune(batch: PruneBatch) -> tuple[GraphHit, ...]:
    """Return the ``k`` paths of the highest cosine, best first; equal ones in their order.

    Raises:
        EngineError: if there is not one vector for each path, of the query's dimension.
    """
    paths: Paths = batch.paths
    walked = paths.walked()
    if not walked or not batch.k:
        return ()
    query = np.asarray(batch.query, dtype=np.float32).reshape(-1)
    vectors = np.asarray(batch.vectors, dtype=np.float32)
    if vectors.shape != (len(walked), len(query)):
        raise EngineError(
            "the vectors of paths do not fit the paths",
            found=f"shape {vectors.shape}",
            valid=f"({len(walked)}, {len(query)})",
        )
    scores = unit(vectors) @ unit(query[None, :])[0]
    chosen = best(np.arange(len(walked)), scores, batch.k)
    return tuple(_hit(walked[place], float(scores[place])) for place in chosen.tolist())


def _hit(path: GraphPath, score: float) -> GraphHit:
    told = {"entities": path.entities, "relations": path.relations}
    return GraphHit(Document(path.text, path.text, told), score, path)
