"""Relation paths as trees and as texts, from the same segments."""

from __future__ import annotations

import numpy as np
import pytest
from tree_kit import characters, drawn, paths_of, random_paths

from rag_accel.engine_api import GraphPath
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.layouts import LAYOUTS, lay_out
from rag_accel.kv.dependency.paths import PATH_END, path_segments
from rag_accel.kv.dependency.visibility import dense_mask

PATHS = [
    path_segments(GraphPath(("a", "b", "c"), ("r", "s"), (True, True))),
    path_segments(GraphPath(("a", "b", "d"), ("r", "t"), (True, False))),
    path_segments(GraphPath(("b", "c"), ("s",), (True,))),
    path_segments(GraphPath(("e",), (), ())),
]


def test_records_hold_each_head_once_for_all_paths_that_pass_it() -> None:
    assert drawn(lay_out(PATHS, "records", characters)) == [
        "a",
        "   -> r ->",
        "     b",
        "      \\n",
        "b",
        "   -> s ->",
        "     c",
        "      \\n",
        "   <- t <-",
        "     d",
        "      \\n",
        "e",
        "  \\n",
    ]


def test_a_relation_to_many_entities_is_one_node_of_its_record_and_whole_in_grouped_text() -> None:
    paths = [("a", " -> r ->", " b"), ("a", " -> r ->", " c")]
    records = lay_out(paths, "records", characters)
    assert records.texts == ("a", " -> r ->", " b", "\n", " c", "\n")
    assert lay_out(paths, "grouped", characters).text == "a -> r -> b\n -> r -> c\n"


def test_flat_text_has_a_line_for_each_path() -> None:
    text = lay_out(PATHS, "flat", characters).text
    assert text == "a -> r -> b -> s -> c\na -> r -> b <- t <- d\nb -> s -> c\ne\n"


def test_grouped_text_has_each_head_once_and_its_edges_behind_it() -> None:
    text = lay_out(PATHS, "grouped", characters).text
    assert text == "a -> r -> b\nb -> s -> c\n <- t <- d\ne\n"


def test_an_entity_alone_adds_nothing_to_its_record() -> None:
    for layout in ("records", "grouped"):
        alone = lay_out([("a",), ("a", "r", "b"), ("c",)], layout, characters)  # type: ignore[arg-type]
        assert alone.text == "arb\nc\n"


def test_entities_that_differ_by_a_space_are_different_heads() -> None:
    spaced = path_segments(GraphPath(("a", " b", "c"), ("r", "s"), (True, True)))
    plain = path_segments(GraphPath(("b", "d"), ("s",), (True,)))
    text = lay_out([spaced, plain], "grouped", characters).text
    assert text == "a -> r ->  b\n b -> s -> c\nb -> s -> d\n"


def test_a_space_that_an_entity_begins_a_path_with_is_its_own() -> None:
    paths = [(" b", " -> s ->", " c"), ("b", " -> s ->", " d")]
    assert lay_out(paths, "grouped", characters).text == " b -> s -> c\nb -> s -> d\n"


def test_an_entity_of_one_space_is_a_head() -> None:
    text = lay_out([("a", "r", " ", "s", "c")], "grouped", characters).text
    assert text == "ar \n sc\n"


@pytest.mark.parametrize("layout", ["flat", "grouped"])
def test_texts_are_ordinary_causal_prompts(layout: str) -> None:
    tree = lay_out(PATHS, layout, characters)  # type: ignore[arg-type]
    assert np.array_equal(dense_mask(tree), np.tri(len(tree.ids), dtype=np.bool_))


@pytest.mark.parametrize("seed", range(40))
def test_records_hold_the_edges_of_the_paths_and_no_others(seed: int) -> None:
    paths = random_paths(seed)
    edges = {path[at : at + 3] for path in paths for at in range(0, len(path) - 2, 2)}
    heads = {edge[0] for edge in edges}
    alone = {(path[0],) for path in paths if len(path) == 1 and path[0] not in heads}
    found = paths_of(lay_out(paths, "records", characters))
    assert sorted(map(tuple, found)) == sorted((*one, PATH_END) for one in edges | alone)
    lines = lay_out(paths, "grouped", characters).text.count(PATH_END)
    assert lines == len(found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_refuses_paths_that_are_none(layout: str) -> None:
    with pytest.raises(ConfigError, match="no path"):
        lay_out([], layout, characters)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["records", "grouped"])
def test_heads_need_paths_that_end_with_an_entity(layout: str) -> None:
    with pytest.raises(ConfigError, match=r"path 1; found 2 segments.*layout='tree'"):
        lay_out([("a",), ("a", "r")], layout, characters)  # type: ignore[arg-type]


def test_a_tree_may_end_anywhere() -> None:
    assert lay_out([("a", "r")], "tree", characters).text == "ar\n"
    assert lay_out([("a", "r")], "flat", characters).text == "ar\n"


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="'forest'; valid: tree, records, flat, grouped"):
        lay_out([("a",)], "forest", characters)  # type: ignore[arg-type]
