"""The neighbours of a text are those most similar to it, in one order, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rag_accel.errors import ConfigError
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.neighbours import neighbours

#: Angles of texts on a circle, in degrees.
LINE = [0, 10, 25, 45, 70]


def on_circle(angles: Sequence[float], length: float = 1.0) -> Any:
    radians = np.radians(np.array(angles))
    return (np.stack([np.cos(radians), np.sin(radians)], axis=1) * length).astype(np.float32)


def found(vectors: Any, count: int, **given: Any) -> list[tuple[int, ...]]:
    size = len(vectors)
    settings = {"contents": range(size), "tokens": [1] * size, "room": [100] * size, **given}
    return neighbours(vectors, count, **settings)


def test_the_most_similar_is_last() -> None:
    assert found(on_circle(LINE), 2) == [(2, 1), (2, 0), (3, 1), (4, 2), (2, 3)]


def test_the_most_similar_may_be_first() -> None:
    first = found(on_circle(LINE), 2, order="nearest_first")
    assert first == [one[::-1] for one in found(on_circle(LINE), 2)]


def test_the_length_of_a_vector_does_not_matter() -> None:
    vectors = on_circle(LINE) * np.array([[1.0], [9.0], [0.1], [3.0], [2.0]], dtype=np.float32)
    assert found(vectors, 2) == found(on_circle(LINE), 2)


def test_of_equal_ones_the_earlier_is_nearer() -> None:
    assert found(on_circle([0, 30, 30, -30]), 2)[0] == (2, 1)


def test_equal_ones_beyond_those_sorted_first_are_in_order() -> None:
    vectors = on_circle([0, *[30] * 200])
    assert found(vectors, 3)[0] == (3, 2, 1)


def test_no_text_is_its_own_neighbour_or_that_of_an_equal_one() -> None:
    vectors = on_circle([0, 0, 10, 10, 20])
    assert found(vectors, 4, contents="aabbc") == [(4, 2), (4, 2), (4, 0), (4, 0), (0, 2)]


def test_what_has_no_room_is_left_out_and_the_next_is_taken() -> None:
    sizes = {"tokens": [5, 11, 5, 5, 5], "room": [10, 4, 5, 100, 0]}
    assert found(on_circle(LINE), 3, **sizes) == [(3, 2), (), (3,), (1, 4, 2), ()]


def test_fewer_texts_than_asked_for_are_all_taken() -> None:
    assert found(on_circle([0, 10]), 5) == [(1,), (0,)]
    assert found(on_circle([0]), 5) == [()]


def test_no_neighbours_need_no_vectors() -> None:
    assert found([0, 0, 0], 0) == [(), (), ()]


def test_a_vector_of_zeros_is_similar_to_none() -> None:
    vectors = np.zeros((3, 2), dtype=np.float32)
    vectors[1:] = on_circle([0, 10])
    assert found(vectors, 1)[1:] == [(2,), (1,)]


def test_the_result_does_not_depend_on_how_many_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    at_once = found(vectors, 5)
    monkeypatch.setattr("rag_accel.kv.neighbours._BLOCK_CELLS", 60 * 7)
    assert found(vectors, 5) == at_once


@pytest.mark.parametrize(
    ("vectors", "count", "order", "named"),
    [
        (on_circle(LINE), -1, "nearest_last", "neighbours"),
        (on_circle(LINE), 33, "nearest_last", "neighbours"),
        (on_circle(LINE), 1, "any", "neighbour_order"),
        (on_circle(LINE)[:, 0], 1, "nearest_last", "vectors"),
        (np.full((5, 2), np.inf), 1, "nearest_last", "vectors"),
    ],
)
def test_bad_input_is_named(vectors: Any, count: int, order: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        found(vectors, count, order=order)


def test_vectors_of_other_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="vectors"):
        found(on_circle(LINE), 1, contents="ab", tokens=[1, 1], room=[9, 9])


def test_keys_differ_by_neighbours_their_order_and_the_tenant() -> None:
    mine, theirs = (ChunkSource("model", one, (1, 2)) for one in ("mine", "theirs"))
    sources = [
        mine,
        theirs,
        mine.behind([(3, 4)]),
        mine.behind([(3,), (4,)]),
        mine.behind([(4,), (3,)]),
        theirs.behind([(3, 4)]),
        mine.behind([(3, 4), (3, 4)]),
    ]
    assert len({one.key((7, 8)) for one in sources}) == len(sources)
    assert mine.behind([(3, 4)]).key((7, 8)) == sources[2].key((7, 8))
