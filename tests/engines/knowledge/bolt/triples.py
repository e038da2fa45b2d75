"""Triples for tests, their edges by definition, and how they get into a database."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from rag_accel.engine_api import ExpandBatch, GraphPath, LinkQuery
from rag_accel.engines.knowledge.paths import Paths, extend, start
from rag_accel.engines.knowledge.protocol import Expansion, GraphView

Triple = tuple[str, str, str]

#: Names that mean something to Cypher, to JSON, to Lucene or to a terminal.
ODD_NAMES = (
    "it's",
    'a "quote"',
    "a`tick",
    "two\nlines",
    "tab\tand nul\0",
    "'}) DETACH DELETE (n) //",
    "$leaving",
    "a -> b -> c",
    "\\u0060",
    "AND OR NOT *:*",
    "é",
    "\ufffd",
    "\U0001f600",
    "",
)


def random_graph(seed: int, prefix: str = "") -> list[Triple]:
    """Return up to 60 triples over a few names: repeated ones, self-loops and cycles among them."""
    rng = random.Random(seed)
    names = [prefix + name for name in (*ODD_NAMES, *"abcdefgh")]
    rng.shuffle(names)
    names = names[: rng.randint(2, 12)]
    relations = ["likes", "type", "`r`", "a b", "'", "Z"][: rng.randint(1, 6)]
    return [
        (rng.choice(names), rng.choice(relations), rng.choice(names))
        for _ in range(rng.randint(1, 60))
    ]


def edges_by_definition(
    triples: Iterable[Triple], entity: str, asked: Expansion
) -> list[tuple[str, str, bool]]:
    """Return an entity's edges as ``(relation, other, forward)``, as ``Edges`` says."""
    ways: dict[bool, list[tuple[str, str]]] = {}
    if asked.direction != "in":
        ways[True] = [(r, t) for h, r, t in set(triples) if h == entity != t]
    if asked.direction != "out":
        ways[False] = [(r, h) for h, r, t in set(triples) if t == entity != h]
    return [
        (relation, other, forward)
        for forward, edges in ways.items()
        for relation, other in sorted(
            edge for edge in edges if asked.relations is None or edge[0] in asked.relations
        )[: asked.fan_out]
    ]


def named_edges(view: GraphView, asked: Sequence[Expansion]) -> list[list[list[Any]]]:
    """Return the edges of each entity of each expansion by name, as a view gives them."""
    found = []
    for edges in view.expand(asked):
        relations = view.relation_names(edges.relations)
        others = view.entity_names(edges.others)
        rows = list(zip(relations, others, edges.forward.tolist(), strict=True))
        bounds = edges.offsets.tolist()
        found.append([rows[low:high] for low, high in pairwise(bounds)])
    return found


def walk(view: GraphView, seeds: Sequence[Sequence[str]], hop: ExpandBatch, hops: int) -> list[Any]:
    """Return the paths of several requests, linked by name and expanded hop by hop together."""
    queries = [LinkQuery(len(names), names=tuple(names)) for names in seeds]
    paths: list[Paths] = [start(view, found) for found in view.find(queries)]
    for _ in range(hops):
        asked = [
            Expansion(one.frontier, hop.relations, hop.direction, hop.fan_out) for one in paths
        ]
        found = view.expand(asked)
        paths = [extend(one, edges, hop.limit) for one, edges in zip(paths, found, strict=True)]
    return [one.walked() for one in paths]


def paths_by_definition(
    triples: Sequence[Triple], seeds: Sequence[str], hop: ExpandBatch, hops: int
) -> list[GraphPath]:
    """Return the paths from entities, extended one edge at a time; no hop may exceed its limit."""
    known = {name for h, _, t in triples for name in (h, t)}
    last = [GraphPath((name,), (), ()) for name in dict.fromkeys(seeds) if name in known]
    found: list[GraphPath] = []
    asked = Expansion(None, hop.relations, hop.direction, hop.fan_out)  # type: ignore[arg-type]
    for _ in range(hops):
        last = [
            GraphPath(
                (*path.entities, other), (*path.relations, relation), (*path.forward, forward)
            )
            for path in last
            for relation, other, forward in edges_by_definition(triples, path.entities[-1], asked)
            if other not in path.entities
        ]
        assert len(last) <= hop.limit
        found += last
    return found


def fill(driver: Any, triples: Sequence[Triple], **settings: Any) -> None:
    """Write triples: one node for each name, one relationship for each triple, repeated or not."""
    names = sorted({name for h, _, t in triples for name in (h, t)})
    driver.execute_query(
        "UNWIND $names AS name CREATE (:__Entity__ {id: name})", names=names, **settings
    )
    for relation, group in groupby(sorted(triples, key=lambda t: t[1]), key=lambda t: t[1]):
        driver.execute_query(
            "UNWIND $rows AS row MATCH (a:__Entity__ {id: row[0]}), (b:__Entity__ {id: row[1]}) "
            f"CREATE (a)-[:`{relation.replace('`', '``')}`]->(b)",
            rows=[[head, tail] for head, _, tail in group],
            **settings,
        )
