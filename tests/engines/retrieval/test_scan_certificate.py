"""A score never leaves the bounds that codes or float32 products put around it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engines.retrieval import Metric
from rag_accel.engines.retrieval.nearest import exact_scores
from rag_accel.engines.retrieval.scan.certificate import (
    Bounds,
    Certificate,
    CodedQueries,
    encode_queries,
)
from rag_accel.engines.retrieval.scan.codes import CodedRows, encode

KINDS = ("normal", "whole", "huge", "tiny", "denormal", "zero", "spiked", "far", "twin", "lossless")


def make_rows(random: np.random.Generator, count: int, dimension: int, kinds: list[str]) -> Any:
    """Return rows of adversarial kinds.

    A twin differs from the row before in one last bit. A lossless row is scale times codes, so that
    nothing but rounding separates its scores from their estimates.
    """
    rows = random.standard_normal((count, dimension)).astype(np.float32)
    for number, kind in enumerate(random.choice(kinds, count).tolist()):
        row = rows[number]
        if kind == "whole":
            rows[number] = np.round(2 * row)
        elif kind == "huge":
            rows[number] = row / max(np.abs(row).sum(), 1e-6) * 9e17
        elif kind == "tiny":
            rows[number] = row * np.float32(1e-30)
        elif kind == "denormal":
            rows[number] = row * np.float32(1e-42)
        elif kind == "zero":
            rows[number] = 0
        elif kind == "spiked":
            rows[number, random.integers(dimension)] = 1e6
        elif kind == "far":
            rows[number] = row + 1000
        elif kind == "lossless":
            codes = random.integers(-127, 128, dimension)
            codes[random.integers(dimension)] = 127
            rows[number] = codes * np.ldexp(float(random.integers(2**16, 2**17)), -20)
        elif kind == "twin" and number:
            rows[number] = rows[number - 1]
            place = random.integers(dimension)
            rows[number, place] = np.nextafter(rows[number, place], np.float32(np.inf))
    return rows


def errors_of(rows: Any) -> Any:
    """Return what coding loses of each row: the direction in which the bound is reached."""
    coded = encode(rows)
    shown = coded.scales.astype(np.float64)[:, None] * coded.codes
    return (rows - shown).astype(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw rows and queries; some queries lie along the errors of rows, and the reverse."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dimension = draw(st.sampled_from([1, 2, 3, 17, 64, 200]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True))
    rows = make_rows(random, 40, dimension, kinds)
    queries = make_rows(random, 12, dimension, kinds)
    if draw(st.booleans()):
        queries[::2] = errors_of(rows)[:6]
        rows[::4] = errors_of(queries)[:10]
    return rows, queries


def coded_pairs(rows: Any, queries: Any) -> tuple[CodedRows, CodedQueries, Any]:
    """Return codes of both and their products ``[queries, rows]``."""
    coded, asked = encode(rows), encode_queries(queries)
    return coded, asked, asked.codes.astype(np.int32) @ coded.codes.T.astype(np.int32)


def of_codes(metric: Metric, rows: Any, queries: Any) -> Bounds:
    """Bound all pairs by their codes, query by query."""
    coded, asked, products = coded_pairs(rows, queries)
    query, row = (places.ravel() for places in np.indices(products.shape))
    certificate = Certificate(metric, rows.shape[1])
    return certificate.of_codes(products.ravel(), coded, row, asked, query)


def scores_of(metric: Metric, rows: Any, queries: Any) -> Any:
    """Return the scores that decide, ``[queries * rows]``."""
    pairs = np.repeat(queries, len(rows), axis=0), np.tile(rows, (len(queries), 1))
    return exact_scores(metric, *pairs)


@settings(max_examples=150, deadline=None)
@given(metric=st.sampled_from(Metric), case=cases())
def test_the_score_lies_within_the_bounds_of_codes(metric: Metric, case: tuple[Any, Any]) -> None:
    bounds, scores = of_codes(metric, *case), scores_of(metric, *case)
    assert (bounds.lower <= scores).all()
    assert (scores <= bounds.upper).all()


@settings(max_examples=150, deadline=None)
@given(metric=st.sampled_from(Metric), case=cases())
def test_the_score_lies_within_the_bounds_of_float32_products(
    metric: Metric, case: tuple[Any, Any]
) -> None:
    rows, queries = case
    coded, asked, _ = coded_pairs(rows, queries)
    query, row = (places.ravel() for places in np.indices((len(queries), len(rows))))
    for products in (queries @ rows.T, np.einsum("id,jd->ij", queries, rows)):
        bounds = Certificate(metric, rows.shape[1]).of_floats(
            products.ravel(), coded.squares[row], asked, query
        )
        scores = scores_of(metric, rows, queries)
        assert (bounds.lower <= scores).all()
        assert (scores <= bounds.upper).all()


def is_every_row_kept(metric: Metric, rows: Any, queries: Any, rank: int) -> bool:
    """Tell whether a block keeps all rows that reach the score of the row of this rank.

    The score to reach is the very score of a row, so that row must stay by no margin at all.
    """
    coded, asked, products = coded_pairs(rows, queries)
    certificate = Certificate(metric, rows.shape[1])
    scores = scores_of(metric, rows, queries).reshape(products.shape)
    reached = np.sort(scores, axis=1)[:, rank]
    lengths = np.maximum(coded.code_norms, np.sqrt(coded.squares) * (1 + 1e-15))
    thresholds = certificate.thresholds(
        certificate.allowance(asked), reached, float(coded.error_norms.max()), float(lengths.max())
    )
    block = certificate.comparable(products, coded, slice(0, len(rows)), asked.scales)
    return bool((block >= thresholds[:, None])[scores >= reached[:, None]].all())


@settings(max_examples=150, deadline=None)
@given(metric=st.sampled_from(Metric), case=cases(), rank=st.integers(0, 39))
def test_a_block_keeps_every_row_that_reaches_the_score(
    metric: Metric, case: tuple[Any, Any], rank: int
) -> None:
    assert is_every_row_kept(metric, *case, rank)


@pytest.mark.parametrize("query_size", [2.0**-40, 2.0**-10, 1, 2.0**10, 2.0**40])
@pytest.mark.parametrize("dimension", [1, 2, 8, 200, 5000])
def test_a_block_allows_for_rounding_when_codes_lose_nothing(
    metric: Metric, dimension: int, query_size: float
) -> None:
    random = np.random.default_rng(dimension)
    for _ in range(5 if dimension < 1000 else 1):
        rows, queries = (make_rows(random, 20, dimension, ["lossless"]) for _ in range(2))
        queries[:10] = rows[:10]  # at dimension 5000 the codes' product has more than 24 digits
        queries *= np.float32(query_size)
        assert not encode(rows).error_norms.any()
        assert all(is_every_row_kept(metric, rows, queries, rank) for rank in range(0, 20, 3))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_the_stored_lengths_are_no_smaller_than_the_true_ones(seed: int, kind: str) -> None:
    rows = make_rows(np.random.default_rng(seed), 6, 5, [kind])
    coded = encode(rows)
    for number, row in enumerate(rows.tolist()):
        scale = Fraction(float(coded.scales[number]))
        shown = [scale * code for code in coded.codes[number].tolist()]
        lost = sum((Fraction(value) - part) ** 2 for value, part in zip(row, shown, strict=True))
        assert Fraction(float(coded.error_norms[number])) ** 2 >= lost
        assert Fraction(float(coded.code_norms[number])) ** 2 >= sum(part**2 for part in shown)


def test_the_bound_is_reached_so_it_cannot_be_smaller() -> None:
    rows = np.asarray([[127, 0.4999]], dtype=np.float32)
    queries = np.asarray([[0, 1]], dtype=np.float32)
    bounds = of_codes(Metric.INNER_PRODUCT, rows, queries)
    assert bounds.upper[0] == pytest.approx(0.4999, rel=1e-5)


def test_the_bound_of_ordinary_rows_is_a_hundredth_of_their_lengths(metric: Metric) -> None:
    random = np.random.default_rng(0)
    rows, queries = (random.standard_normal((50, 256)).astype(np.float32) for _ in range(2))
    bounds = of_codes(metric, rows / 16, queries / 16)
    width = (bounds.upper - bounds.lower).max()
    assert width < (0.1 if metric is Metric.L2 else 0.05)


def test_nothing_is_dropped_while_nothing_is_reached(metric: Metric) -> None:
    random = np.random.default_rng(0)
    rows, queries = make_rows(random, 60, 8, list(KINDS)), make_rows(random, 20, 8, list(KINDS))
    coded, asked, products = coded_pairs(rows, queries)
    certificate = Certificate(metric, 8)
    nothing = np.full(len(queries), -np.inf)
    thresholds = certificate.thresholds(certificate.allowance(asked), nothing, 1.0, 1.0)
    block = certificate.comparable(products, coded, slice(0, 60), asked.scales)
    assert (block >= thresholds[:, None]).all()
