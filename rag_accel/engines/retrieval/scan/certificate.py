"""Bound how far a score estimated from codes can be from the score that decides.

**What decides** is the float64 score ``S~`` that ``nearest.py`` computes; ``S`` is the same number
without rounding. Write ``x = x^ + e_x`` and ``q = q^ + e_q``, where ``x^ = s_x c_x`` and
``q^ = s_q c_q`` are what the codes say. Then, without any rounding,

    x.q  =  x^.q + e_x.q  =  x^.q^ + x^.e_q + e_x.q,    so by Cauchy and Schwarz
    |x.q - s_x s_q (c_x.c_q)|  <=  |e_x| |q| + |x^| |e_q|.                                   (1)

``c_x.c_q`` is a whole number below 2**31 and computed exactly; the four lengths are stored rounded
up. Below, ``u = 2**-24`` and ``v = 2**-53`` are the unit roundoffs of float32 and float64, ``d`` is
the dimension, ``X`` is no smaller than ``|x|`` and ``|x^|``, and ``Q`` likewise for the query.

**Rounding in float64.** The estimate is one product of an exact number (off by ``v X Q``), for L2
three terms of at most ``2 X Q + X^2 + Q^2 = (X + Q)^2`` with their own roundings, of which the two
squares were summed over ``d`` terms. ``S~`` is a sum of ``d`` products, or of ``d`` squares of
differences, and ``S`` is at most ``X Q``, or ``(X + Q)^2``, in magnitude. All of it together stays
below ``(3 d + 20) v R``, where ``R`` is ``X Q`` for inner products and ``(X + Q)^2`` for L2. We
allow ``w R`` with ``w = 16 (d + 8) v`` (2). What is left of it, more than ``100 v R``, covers the
roundings of the bound itself and of comparing it.

**Rounding in float32**, where whole blocks are compared at once: ``f = fl(fl(c_x.c_q) * s_x)``
holds two roundings, so ``|s_q f - s_x s_q (c_x.c_q)| <= 3 u X Q + s_q 2**-125`` (3); the last term
is for numbers below the normal range, flushed to zero or not. For L2 the block holds
``fl(fl(2 s_q f) - fl(|x|^2))`` with three more; together at most ``u (10.1 X Q + 2.1 X^2)``, which
is less than ``6 u (X + Q)^2`` since ``4 X Q <= (X + Q)^2`` (4).

**A float32 inner product** of ``d`` terms in any order is off by at most ``1.01 d u X Q``, as
``d u`` is below 0.008, and by ``d 2**-125`` for what underflows (5).

A row is dropped if its upper bound lies *below* a number that ``k`` rows of the query's clusters
are known to reach. By (1) to (5) its ``S~`` is then below theirs, so it is not among the first
``k``, whatever its label: ties are never dropped.

**Comparing a block.** The threshold ``t`` is computed in float64 and rounded down twice, to float32
and to the number below. Its own rounding is at most a few ``v`` of its terms. One of them, the
number ``L`` to be reached, may be larger than ``R``. If ``|L| <= 4 R``, then (2) covers it. If
``L < -4 R``, the row's score is at least ``-2 R`` and it stays by a wide margin; if ``L > 4 R``,
``t`` is off by a few ``v`` of itself, which rounding down covers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.index_spec import Metric
from rag_accel.engines.retrieval.scan.codes import (
    CodedRows,
    Codes,
    Float32s,
    Float64s,
    encode,
    upper_lengths,
)
from rag_accel.engines.retrieval.vectors import Scores

UNIT_ROUNDOFF = 2.0**-24
UNIT_ROUNDOFF_64 = 2.0**-53
UNDERFLOW = 2.0**-125
NEGATIVE_INFINITY = np.float32(-np.inf)
ROUND_UP = 1 + 2.0**-40  # the bound is a handful of float64 operations


@dataclass(frozen=True, slots=True)
class CodedQueries:
    """Hold queries as codes, their lengths in float64: ``[m]`` each, rounded up.

    ``lengths`` are no smaller than those of the query and of its codes.
    """

    codes: Codes
    scales: Float64s
    errors: Float64s
    lengths: Float64s
    squares: Float64s


def encode_queries(queries: Vectors) -> CodedQueries:
    """Return the codes of queries ``[m, dim], float32`` that ``checks.checked_vectors`` took."""
    rows = encode(queries)
    lengths = np.maximum(rows.code_norms, upper_lengths(rows.squares, queries.shape[1]))
    return CodedQueries(
        codes=rows.codes,
        scales=rows.scales.astype(np.float64),
        errors=rows.error_norms.astype(np.float64),
        lengths=lengths,
        squares=rows.squares,
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Hold for each pair numbers that its score cannot lie outside of, float64."""

    lower: Float64s
    upper: Float64s


@dataclass(frozen=True, slots=True)
class Certificate:
    """Bound scores of one metric (higher is nearer) between rows and queries of one dimension."""

    metric: Metric
    dimension: int

    def of_codes(
        self,
        products: npt.NDArray[np.int32],
        rows: CodedRows,
        row: npt.NDArray[np.int64],
        queries: CodedQueries,
        query: npt.NDArray[np.int64],
    ) -> Bounds:
        """Bound the scores of pairs ``(row[i], query[i])`` whose codes' products are given."""
        row_codes = rows.code_norms[row].astype(np.float64)
        row_errors = rows.error_norms[row].astype(np.float64)
        estimate = rows.scales[row] * queries.scales[query] * products
        error = row_errors * queries.lengths[query] + row_codes * queries.errors[query]
        return self._bounds(estimate, error, rows.squares[row], row_codes, queries, query)

    def of_floats(
        self,
        products: Float32s,
        squares: Float64s,
        queries: CodedQueries,
        query: npt.NDArray[np.int64],
    ) -> Bounds:
        """Bound the scores of pairs from float32 inner products and the rows' squared lengths."""
        lengths = upper_lengths(squares, self.dimension)
        relative = 1.01 * self.dimension * UNIT_ROUNDOFF
        error = relative * lengths * queries.lengths[query] + self.dimension * UNDERFLOW
        return self._bounds(products.astype(np.float64), error, squares, lengths, queries, query)

    def comparable(
        self, products: npt.NDArray[np.int32], rows: CodedRows, part: slice, scales: Float64s
    ) -> Scores:
        """Turn products ``[queries, rows of part]`` into numbers to compare with ``thresholds``.

        ``scales`` are those of the queries. Float32, for whole blocks of pairs.
        """
        block = np.multiply(products, rows.scales[part], dtype=np.float32, casting="unsafe")
        if self.metric is Metric.L2:
            np.multiply(block, (2 * scales).astype(np.float32)[:, None], out=block)
            np.subtract(block, rows.squares[part].astype(np.float32), out=block)
        return block

    def allowance(self, queries: CodedQueries) -> Float64s:
        """Return what ``thresholds`` needs of the queries, ``[5, m]``, once for a whole scan.

        By (1) to (4) a threshold is ``reached`` less a polynomial of the block's largest error
        ``e`` and largest length ``X``: rows 1 to 4 are the factors of ``e``, ``X``, ``X^2`` and 1,
        row 0 is the factor of ``reached``.
        """
        factors = np.zeros((5, len(queries.scales)))
        if self.metric is Metric.L2:
            slack = self._relative + 6 * UNIT_ROUNDOFF  # times (X + Q)^2
            factors[0] = 1
            factors[1] = 2 * queries.lengths
            factors[2] = 2 * queries.errors + 2 * slack * queries.lengths
            factors[3] = slack
            factors[4] = slack * np.square(queries.lengths)
            factors[4] += 2 * UNDERFLOW * (queries.scales + 1)
            factors[1:] *= ROUND_UP
            factors[4] -= queries.squares
            return factors
        slack = self._relative + 3 * UNIT_ROUNDOFF  # times X Q
        factors[0] = 1 / queries.scales
        factors[1] = queries.lengths / queries.scales
        factors[2] = (queries.errors + slack * queries.lengths) / queries.scales
        factors[4] = UNDERFLOW
        factors[1:] *= ROUND_UP
        return factors

    def thresholds(
        self, allowance: Float64s, reached: Float64s, max_error: float, max_length: float
    ) -> Scores:
        """Return what the pairs of a block must reach in ``comparable`` to matter, ``[m]``.

        Args:
            allowance: of all queries, from ``allowance``.
            reached: ``[m]``; scores that ``k`` rows are known to reach, minus infinity if none.
            max_error: the largest error norm of the block.
            max_length: at least every length and code norm of the block.
        """
        block = np.array((max_error, max_length, max_length * max_length, 1.0))
        needed = reached * allowance[0] - np.einsum("i,ij->j", block, allowance[1:])
        with np.errstate(over="ignore"):  # an infinity below or above every float32 is right
            rounded = needed.astype(np.float32)
        return np.nextafter(rounded, NEGATIVE_INFINITY)

    @property
    def _relative(self) -> float:
        return 16 * (self.dimension + 8) * UNIT_ROUNDOFF_64

    def _bounds(
        self,
        estimate: Float64s,
        error: Float64s,
        squares: Float64s,
        lengths: Float64s,
        queries: CodedQueries,
        query: npt.NDArray[np.int64],
    ) -> Bounds:
        lengths = np.maximum(lengths, upper_lengths(squares, self.dimension))
        query_lengths = queries.lengths[query]
        if self.metric is Metric.L2:
            estimate = 2 * estimate - squares - queries.squares[query]
            error = 2 * error + self._relative * np.square(lengths + query_lengths)
        else:
            error = error + self._relative * lengths * query_lengths
        error *= ROUND_UP
        return Bounds(estimate - error, estimate + error)
