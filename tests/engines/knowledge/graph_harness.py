"""Work for a knowledge engine, and paths found the slow way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    ExpandBatch,
    GraphPath,
    LinkQuery,
    PrimitiveKind,
    PruneBatch,
    StepBudget,
    WorkId,
)
from rag_accel.engines import KnowledgeEngine
from rag_accel.engines.knowledge.protocol import Expansion, GraphView

Triple = tuple[str, str, str]
KINDS = {
    LinkQuery: PrimitiveKind.SEARCHING,
    ExpandBatch: PrimitiveKind.EXPANDING,
    PruneBatch: PrimitiveKind.PRUNING,
}


def work(name: str, payload: Any, namespace: str = "") -> EngineRequest:
    return EngineRequest(WorkId(name), name, KINDS[type(payload)], payload, namespace)


def outputs(engine: KnowledgeEngine, requests: Iterable[EngineRequest]) -> dict[str, EngineOutput]:
    engine.submit(list(requests))
    return {output.id: output for output in engine.step(StepBudget())}


def value(engine: KnowledgeEngine, payload: Any, namespace: str = "") -> Any:
    output = outputs(engine, [work("one", payload, namespace)])["one"]
    if output.error is not None:
        raise output.error
    return output.value


def walk(engine: KnowledgeEngine, names: Sequence[str], hops: int, **options: Any) -> list[str]:
    """Return the texts of all paths from entities of these names."""
    paths = value(engine, LinkQuery(100, names=tuple(names)))
    for _ in range(hops):
        paths = value(engine, ExpandBatch(paths, **options))
    return list(paths.texts())


def edges_of(view: GraphView, asked: Expansion) -> list[list[tuple[str, str, bool]]]:
    """Return the edges of each entity by their names, as ``slow_edges`` does."""
    edges = view.expand([asked])[0]
    rows = list(
        zip(
            view.relation_names(edges.relations),
            view.entity_names(edges.others),
            edges.forward.tolist(),
            strict=True,
        )
    )
    return [rows[low:high] for low, high in pairwise(edges.offsets.tolist())]


def slow_edges(
    triples: Iterable[Triple], entity: str, relations: Any, direction: str, fan_out: int
) -> list[tuple[str, str, bool]]:
    """Return the edges of an entity in the stated order, by looking at every triple."""
    held = {one for one in triples if one[0] != one[2]}
    held = {one for one in held if relations is None or one[1] in relations}
    out = sorted((r, t) for h, r, t in held if h == entity and direction in ("out", "both"))
    into = sorted((r, h) for h, r, t in held if t == entity and direction in ("in", "both"))
    return [(*one, True) for one in out[:fan_out]] + [(*one, False) for one in into[:fan_out]]


def slow_walk(
    triples: Sequence[Triple],
    names: Sequence[str],
    hops: int,
    relations: Any = None,
    direction: str = "both",
    fan_out: int = 32,
    limit: int = 256,
) -> list[str]:
    """Return what ``walk`` does, one path at a time."""
    known = {end for one in triples for end in (one[0], one[2])}
    longest = [GraphPath((name,), (), ()) for name in dict.fromkeys(names) if name in known]
    found: list[str] = []
    for _ in range(hops):
        grown: list[tuple[int, int, GraphPath]] = []
        for place, path in enumerate(longest):
            edges = slow_edges(triples, path.entities[-1], relations, direction, fan_out)
            for rank, (relation, other, forward) in enumerate(edges):
                if other not in path.entities:
                    longer = GraphPath(
                        (*path.entities, other),
                        (*path.relations, relation),
                        (*path.forward, forward),
                    )
                    grown.append((rank, place, longer))
        kept = {id(one[2]) for one in sorted(grown, key=lambda one: one[:2])[:limit]}
        longest = [one[2] for one in grown if id(one[2]) in kept]
        found += [path.text for path in longest]
    return found


def embed(texts: Sequence[str]) -> np.ndarray:
    """Return vectors that count letters: ``[len(texts), 32], float32``."""
    rows = np.zeros((len(texts), 32), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for letter in text.casefold():
            row[ord(letter) % 32] += 1
    return rows
