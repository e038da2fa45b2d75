"""Vectors copied from where they lie are FAISS's own, and nobody looks where they no longer are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engines.retrieval.coded.encoder import CodedVectorsEncoder
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.row_places import MOST_LABELS, RowPlaces
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import Rows

DIMENSION = 12


def made(count: int, seed: int = 0, labels: list[int] | None = None) -> tuple[IvfVectors, Vectors]:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, DIMENSION)).astype(np.float32)
    spec = IndexSpec(DIMENSION, Metric.INNER_PRODUCT, IndexKind.IVF, num_clusters=5, nprobe=5)
    numbers = np.arange(count) if labels is None else np.asarray(labels)
    return IvfVectors.train(spec, numbers.astype(np.int64), vectors), vectors


def encode(held: IvfVectors, at_once: int = 30) -> CodedVectorsEncoder:
    encoder = CodedVectorsEncoder(held)
    while not encoder.is_done:
        encoder.take(at_once)
    return encoder


def from_places(held: IvfVectors, labels: list[int]) -> Vectors | None:
    return None if held._places is None else held._places.rows(np.asarray(labels, dtype=np.int64))


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(5, 300),
    seed=st.integers(0, 1000),
    gone=st.sets(st.integers(0, 299), max_size=100),
    at_once=st.integers(1, 100),
    data=st.data(),
)
def test_rows_are_those_of_the_labels(
    count: int, seed: int, gone: set[int], at_once: int, data: st.DataObject
) -> None:
    held, vectors = made(count, seed)
    held.remove(np.asarray([label for label in gone if label < count], dtype=np.int64))
    encode(held, at_once)
    left = [label for label in range(count) if label not in gone]
    if not left:
        assert from_places(held, [0]) is None
        return
    asked = data.draw(st.lists(st.sampled_from(left), max_size=40))
    found = from_places(held, asked)
    if found is None:
        assert not asked or left[-1] >= MOST_LABELS * len(left)
    else:
        assert (found == vectors[asked]).all()
    assert (held.gather(np.asarray(left)) == vectors[left]).all()


@pytest.mark.parametrize("label", [-1, 7, 40, 1 << 40])
def test_an_unknown_label_is_left_to_faiss(label: int) -> None:
    held, _ = made(40)
    held.remove(np.asarray([7]))
    encode(held)
    assert from_places(held, [3, label]) is None
    with pytest.raises(RuntimeError):
        held.gather(np.asarray([3, label]))


def test_labels_of_which_most_are_gone_get_no_table() -> None:
    held, vectors = made(40, labels=[1000 * number for number in range(40)])
    encode(held)
    assert from_places(held, [2000]) is None
    assert held._places is not None
    assert held._places.num_bytes == 0
    assert (held.gather(np.asarray([2000])) == vectors[2]).all()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_knows_nothing(copied: Callable[[object], RowPlaces]) -> None:
    held, _ = made(20)
    encode(held)
    assert copied(held._places).rows(np.asarray([1])) is None


def rows_of(held: IvfVectors, labels: list[int]) -> Rows:
    vectors = np.ones((len(labels), DIMENSION), dtype=np.float32)
    return held.rows(np.asarray(labels, dtype=np.int64), vectors)


CHANGES: dict[str, Callable[[IvfVectors], None]] = {
    "add": lambda held: held.add(rows_of(held, [60])),
    "replace": lambda held: held.replace(rows_of(held, [3])),
    "remove": lambda held: held.remove(np.asarray([3])),
    "reserve": lambda held: held.reserve(rows_of(held, [3])),  # all that is left of a failed change
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_ends_what_was_known(name: str) -> None:
    held, vectors = made(60)
    encode(held)
    assert from_places(held, [5]) is not None
    CHANGES[name](held)
    assert from_places(held, [5]) is None
    assert (held.gather(np.asarray([5])) == vectors[5]).all()
    encode(held)
    assert from_places(held, [5]) is not None


@pytest.mark.parametrize("looks", [1, 3, 5, 8])
def test_lists_that_moved_between_two_looks_are_not_looked_for(looks: int) -> None:
    # Other changes end the encoding; this one leaves the state as it was, and may move lists.
    held, vectors = made(60)
    encoder = CodedVectorsEncoder(held)
    for _ in range(looks):
        encoder.take(1)
        assert from_places(held, [5]) is None, "not before all are known"
    CHANGES["reserve"](held)
    while not encoder.is_done:
        encoder.take(1)
    assert from_places(held, [5]) is None
    assert (held.gather(np.asarray([5])) == vectors[5]).all()


def test_large_lists_that_lie_far_apart_are_found() -> None:
    # malloc gives such sizes pages of their own, terabytes away from its heap.
    random = np.random.default_rng(0)
    vectors = random.standard_normal((40_000, 64)).astype(np.float32)
    spec = IndexSpec(64, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=2)
    held = IvfVectors.train(spec, np.arange(len(vectors)), vectors)
    small = held.rows(np.arange(40_000, 40_003), vectors[:3])
    held.add(small)
    encode(held, 10_000)
    asked = random.integers(0, len(vectors), 5000)
    found = from_places(held, asked.tolist())
    assert found is not None
    assert (found == vectors[asked]).all()
