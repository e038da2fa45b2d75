"""Whose vectors a graph keeps: those of entities that are there, of their present texts, of one
model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edited_graph import settle
from graph_harness import embed

from rag_accel.engines import MemoryGraph
from rag_accel.errors import GraphLinkError


def waiting(graph: MemoryGraph) -> list[str]:
    return [one.id for one in graph.unembedded()]


def test_a_text_that_changes_meanwhile_gets_no_vector_of_the_old_one() -> None:
    graph = MemoryGraph([("a", "r", "b")], {"a": "old"})

    def tell(texts: list[str]) -> np.ndarray:
        graph.add(texts={"a": "new"})
        return embed(texts)

    assert graph.embed(tell) == 1
    assert waiting(graph) == ["a"]


def test_an_entity_removed_meanwhile_has_no_vector_when_it_comes_back() -> None:
    graph = MemoryGraph([("a", "r", "b"), ("b", "r", "c")])

    def drop(texts: list[str]) -> np.ndarray:
        graph.remove(entities=["a"])
        return embed(texts)

    assert graph.embed(drop) == 2
    graph.add([("a", "r", "b")])
    assert waiting(graph) == ["a"]


def test_vectors_of_texts_that_are_told_are_compared_with_the_present_ones() -> None:
    graph = MemoryGraph([("a", "r", "b")], {"a": "new"})
    kept = graph.set_vectors(["a", "b", "c"], np.eye(3), ["a: old", "b", "c"])
    assert (kept, waiting(graph)) == (1, ["a"])


def test_an_entity_whose_last_triple_goes_loses_its_vector_at_once_or_after_a_merge() -> None:
    graph = MemoryGraph([("a", "r", "b"), ("b", "r", "c"), ("d", "r", "d")], merge_after=1)
    graph.embed(embed)
    settle(graph)
    graph.remove([("a", "r", "b"), ("d", "r", "d")])
    graph.add([("a", "s", "b"), ("d", "s", "d")])
    assert waiting(graph) == ["a", "d"]


def test_entities_that_come_and_go_leave_nothing_behind() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    for number in range(300):
        triple = (f"head {number}", "r", f"tail {number}")
        graph.add([triple])
        graph.embed(embed)
        graph.remove([triple])
    settle(graph)
    base = graph.view().merged()
    assert len(base.vectors) == 2
    assert sum(row is not None for row in graph._edits.vectors.values()) <= 2
    assert len(graph._edits) <= 1024
    assert len(base.entities) <= 1100


@pytest.mark.parametrize("num", [0, 1])
def test_another_encoder_without_a_name_is_an_error(num: int) -> None:
    graph = MemoryGraph([("a", "r", "b")])
    graph.embed(embed)
    graph.add([("a", "r", str(number)) for number in range(num)])
    with pytest.raises(GraphLinkError, match="another model"):
        graph.embed(lambda texts: -embed(texts))
    assert len(waiting(graph)) == num


def test_an_encoder_of_another_dimension_without_a_name_is_an_error() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    graph.embed(embed)
    with pytest.raises(GraphLinkError, match="another model"):
        graph.embed(lambda texts: np.ones((len(texts), 3)))


def test_a_model_named_meanwhile_is_not_mixed_with_another() -> None:
    graph = MemoryGraph([("a", "r", "b")])

    def change(texts: list[str]) -> np.ndarray:
        graph.embed(embed, "two")
        return embed(texts)

    with pytest.raises(GraphLinkError, match="cannot be the vectors"):
        graph.embed(change, "one")
    assert waiting(graph) == []


@pytest.mark.parametrize(
    "vectors", [[[1.0], [1.0, 2.0]], np.ones((2, 0)), [["x"], ["y"]], [None, None], [[], []]]
)
def test_what_are_no_vectors_is_a_named_error(vectors: Any) -> None:
    graph = MemoryGraph([("a", "r", "b")])
    with pytest.raises(GraphLinkError, match="cannot be the vectors"):
        graph.set_vectors(["a", "b"], vectors)
    assert len(waiting(graph)) == 2


def test_equal_vectors_come_in_the_order_of_names_wherever_they_are_kept() -> None:
    from edited_graph import found

    from rag_accel.engine_api import LinkQuery

    graph = MemoryGraph([(f"{number:02}", "r", "x") for number in range(0, 40, 2)])
    row = np.random.default_rng(0).normal(size=37)
    graph.set_vectors(names := [one.id for one in graph.unembedded()], [row] * len(names))
    graph.view()
    graph.add([("07", "r", "x")])
    graph.set_vectors(["07"], [row])
    expected = sorted([*names, "07"])
    assert found(graph, LinkQuery(9, vector=row)) == expected[:9]
