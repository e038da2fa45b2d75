"""A store's triplets as a knowledge graph: what a look at all triplets finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.adoption.triplets import (
    Triplet,
    TripletIndex,
    TripletView,
    TripletWalk,
    hop_from,
    places_in,
)
from rag_accel.engine_api import Direction, EngineRequest, LinkQuery, PrimitiveKind, WorkId
from rag_accel.engines.knowledge import calls
from rag_accel.engines.knowledge.protocol import Edges, Expansion

NAMES = "abcd"
TRIPLETS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from("rs"), st.sampled_from(NAMES)), unique=True
)
Edge = tuple[int, str, bool]


def edges_of(
    triplets: list[Triplet], name: str, relations: tuple[str, ...] | None, direction: Direction
) -> list[list[Edge]]:
    """Return the edges that leave a node, and those that come in: place, other end, which way."""
    out = [(at, one[2], True) for at, one in enumerate(triplets) if one[0] == name != one[2]]
    into = [(at, one[0], False) for at, one in enumerate(triplets) if one[2] == name != one[0]]
    wanted = {"out": [out], "in": [into], "both": [out, into]}[direction]
    return [
        [one for one in group if relations is None or triplets[one[0]][1] in relations]
        for group in wanted
    ]


def shown(view: TripletView, edges: Edges) -> list[list[Edge]]:
    others = view.entity_names(edges.others)
    flat = list(zip(edges.relations.tolist(), others, edges.forward.tolist(), strict=True))
    bounds = edges.offsets.tolist()
    return [flat[start:stop] for start, stop in pairwise(bounds)]


@given(
    TRIPLETS,
    st.lists(st.sampled_from(NAMES)),
    st.sampled_from([None, (), ("r",), ("s", "t")]),
    st.sampled_from(["out", "in", "both"]),
    st.integers(0, 4),
)
def test_edges_are_those_of_the_triplets(
    triplets: list[Triplet],
    names: list[str],
    relations: tuple[str, ...] | None,
    direction: Direction,
    fan_out: int,
) -> None:
    view = TripletView(TripletIndex(triplets))
    (entities,) = view.find([LinkQuery(len(names), names=tuple(names))])
    (edges,) = view.expand([Expansion(entities, relations, direction, fan_out)])
    expected = [
        [
            edge
            for group in edges_of(triplets, name, relations, direction)
            for edge in group[:fan_out]
        ]
        for name in view.entity_names(entities)
    ]
    assert shown(view, edges) == expected


@given(TRIPLETS, st.sets(st.sampled_from(NAMES)))
def test_a_hop_finds_all_triplets_at_either_end_loops_among_them(
    triplets: list[Triplet], names: set[str]
) -> None:
    index = TripletIndex(triplets)
    batch = hop_from(TripletView(index), index.numbers(names), "tenant")
    request = EngineRequest(WorkId("a"), "a", PrimitiveKind.EXPANDING, batch, namespace="tenant")
    (paths,) = calls.hop(batch.paths.view, [request])
    expected = [at for at, one in enumerate(triplets) if names & {one[0], one[2]}]
    assert places_in(paths, index).tolist() == expected
    assert index.touching(names).tolist() == expected


@given(TRIPLETS, st.sets(st.sampled_from(NAMES)), st.integers(-1, 4))
def test_a_walk_goes_on_from_objects_and_repeats_the_first_hop_alone(
    triplets: list[Triplet], names: set[str], depth: int
) -> None:
    index, expected = TripletIndex(triplets), list[list[int]]()
    seen, ends = set[int](), names
    for hop in range(depth):
        found = [at for at, one in enumerate(triplets) if ends & {one[0], one[2]}]
        if hop:
            found = [at for at in found if at not in seen]
            seen.update(found)
        if not found:
            break
        expected.append(found)
        ends = {triplets[at][2] for at in found}
    walk, given_hops = TripletWalk(index, names, depth), list[list[int]]()
    while len(walk.frontier):
        given_hops.append(walk.take(index.around(walk.frontier)).tolist())
    assert [one for one in given_hops if one] == expected


def test_a_view_of_what_has_changed_finds_nothing_any_more() -> None:
    states = iter([True, False, True])
    view = TripletView(TripletIndex([("a", "r", "b")]), lambda: next(states))
    asked = [Expansion(np.array([0])), Expansion(np.array([1]))]
    assert [len(edges.others) for edges in view.expand(asked)] == [1, 1]
    assert not view.is_stale
    for _ in range(2):
        assert [len(edges.others) for edges in view.expand(asked)] == [0, 0]
        assert view.is_stale


@pytest.mark.parametrize("query", [LinkQuery(3, text="a"), LinkQuery(3, names=("x",))])
def test_what_is_not_named_is_not_found(query: LinkQuery) -> None:
    (found,) = TripletView(TripletIndex([("a", "r", "b")])).find([query])
    assert found.tolist() == []
