"""Hold the vectors of an IVF index a second time, as one signed byte per number.

A row ``x`` becomes ``scale * codes + error``: whole numbers in -127 to 127, one float32 scale, and
an error of which only the length is kept. That length is *measured* against the scale as it was
stored, never predicted, so it is right for any row: for zeros and denormals, whose codes are all
zero, and for a row with one huge number, whose other codes are. ``certificate.py`` turns the
lengths into a bound on every product.

Clusters are stored beside their neighbours (``neighbours.py``), whatever order the caller has, so
that what one query visits tends to lie in a row.

Memory: ``dimension + 20`` bytes for each vector (codes, and five numbers' worth of scales and
lengths) and about 50 bytes for each cluster. The vectors and labels themselves stay the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.checks import Vectors, checked_vectors
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.scan.neighbours import order_by_neighbourhood
from rag_accel.errors import ConfigError

Codes = npt.NDArray[np.int8]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

LARGEST_CODE = 127
MAX_CODE_DIMENSION = (2**31 - 1) // LARGEST_CODE**2
"""Longest row whose products are sure to fit into 32 bits."""

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # normal, so that no scale loses digits
MAX_ENCODED = 1 << 16  # float64 numbers held at once while encoding; 512 KiB stay in the cache


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Hold rows as codes, each with the lengths its certificate needs.

    Args:
        codes: ``[n, dim], int8``.
        scales: ``[n], float32``; above zero.
        error_norms: ``[n], float32``; at least the length of ``row - scale * codes``.
        code_norms: ``[n], float32``; at least the length of ``scale * codes``.
        squares: ``[n], float64``; the squared length of the row, off by at most ``dim * 2**-53``
            of itself.
    """

    codes: Codes
    scales: Float32s
    error_norms: Float32s
    code_norms: Float32s
    squares: Float64s

    @property
    def nbytes(self) -> int:
        """Return the memory held, in bytes."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True, slots=True)
class ClusterCodes:
    """Hold the codes of clustered vectors. A cluster's *place* is where it is stored.

    Made by ``encode_clusters``. Holds no vectors, so a scan is given them again.

    Args:
        rows: all rows, place after place.
        labels: ``[n], int64``, in the order of the caller's vectors; not copied.
        starts: ``[clusters + 1], int64``; rows of place ``p`` are ``starts[p] : starts[p + 1]``.
        places: ``[clusters], int64``; the place of each cluster.
        shifts: ``[clusters], int64``; by place, what leads from a code row to the vector's row.
        max_errors: ``[clusters], float64``; by place, the largest error norm.
        max_lengths: ``[clusters], float64``; by place, at least every length and code norm.
    """

    rows: CodedRows
    labels: Labels
    starts: Labels
    places: Labels
    shifts: Labels
    max_errors: Float64s
    max_lengths: Float64s

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """Return the length of a row."""
        return self.rows.codes.shape[1]

    @property
    def num_clusters(self) -> int:
        """Return how many clusters there are, empty ones included."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Return the memory held beside the caller's arrays, in bytes."""
        own = (self.starts, self.places, self.shifts, self.max_errors, self.max_lengths)
        return self.rows.nbytes + sum(array.nbytes for array in own)

    def places_of(self, rows: Labels) -> Labels:
        """Return the place each code row lies in."""
        return np.searchsorted(self.starts, rows, side="right") - 1


def encode_clusters(vectors: Vectors, offsets: Any, labels: Any) -> ClusterCodes:
    """Make the codes of vectors that are grouped by cluster.

    Args:
        vectors: ``[n, dim], float32``; those of cluster ``c`` are ``offsets[c] : offsets[c + 1]``.
        offsets: ``[clusters + 1]`` integers, from 0 to ``n``, never falling.
        labels: ``[n]`` integers of at least 0.

    Raises:
        ConfigError: arrays whose shapes do not fit together, rows that are too long for codes.
        EngineOutputError: a vector with NaN, an infinity, or too long for float32 distances.
    """
    vectors = check_rows(vectors, "vectors")
    numbers = _checked_integers("labels", labels, len(vectors), 0, np.iinfo(np.int64).max)
    offsets = _checked_offsets(offsets, len(vectors))
    sizes = np.diff(offsets)
    order = order_by_neighbourhood(_means(vectors, offsets))
    starts = np.concatenate(([0], np.cumsum(sizes[order])))
    shifts = offsets[:-1][order] - starts[:-1]
    rows = _encode_ordered(vectors, np.repeat(shifts, sizes[order]))
    lengths = np.maximum(rows.code_norms, upper_lengths(rows.squares, vectors.shape[1]))
    return ClusterCodes(
        rows=rows,
        labels=numbers,
        starts=starts,
        places=np.argsort(order),
        shifts=shifts,
        max_errors=maxima(rows.error_norms, starts),
        max_lengths=maxima(lengths, starts),
    )


def encode(rows: Vectors) -> CodedRows:
    """Return the codes of finite rows ``[n, dim], float32``, whose length is at most ``MAX_NORM``.

    The scale is the largest magnitude divided by 127; codes are rounded to nearest. Codes times
    scale is exact in float64 (8 + 24 digits), the difference to the row is rounded once.
    """
    count, dimension = rows.shape
    coded = empty_rows(count, dimension)
    step = max(1, MAX_ENCODED // dimension)
    for start in range(0, count, step):
        encode_part(rows[start : start + step], coded, slice(start, start + step))
    return coded


def upper_lengths(squares: Float64s, dimension: int) -> Float64s:
    """Return numbers no smaller than the true lengths, from squares summed in float64."""
    return np.sqrt(squares) * (1 + (dimension + 8) * 2.0**-52)


def check_rows(value: Any, what: str) -> Vectors:
    """Return rows ``[n, dim], float32`` that can be encoded.

    Raises:
        ConfigError: not a matrix, or rows too long for codes.
        EngineOutputError: a row that is not finite or too long for float32 distances.
    """
    shape = np.shape(value)
    if len(shape) != 2 or not 1 <= shape[1] <= MAX_CODE_DIMENSION:
        raise ConfigError(
            "rows that cannot be encoded",
            where=what,
            found=f"shape {shape}",
            valid=f"shape (n, dim), dim from 1 to {MAX_CODE_DIMENSION}",
        )
    return checked_vectors(value, shape[1], lambda row: f"{what}[{row}]")


def _encode_ordered(vectors: Vectors, shifts: Labels) -> CodedRows:
    """Encode row after row of the *stored* order, of which ``shifts`` leads to the vectors."""
    count, dimension = vectors.shape
    coded = empty_rows(count, dimension)
    sources = np.arange(count) + shifts
    step = max(1, MAX_ENCODED // dimension)
    for start in range(0, count, step):
        part = slice(start, start + step)
        encode_part(vectors[sources[part]], coded, part)
    return coded


def empty_rows(count: int, dimension: int) -> CodedRows:
    """Return room for the codes of ``count`` rows, to be filled by ``encode_part``."""
    return CodedRows(
        codes=np.empty((count, dimension), dtype=np.int8),
        scales=np.empty(count, dtype=np.float32),
        error_norms=np.empty(count, dtype=np.float32),
        code_norms=np.empty(count, dtype=np.float32),
        squares=np.empty(count, dtype=np.float64),
    )


def encode_part(rows: Vectors, coded: CodedRows, part: slice) -> None:
    """Fill ``part`` of ``coded`` with the codes of ``rows``; holds about 40 bytes per number."""
    largest = np.abs(rows).max(axis=1)
    scales = np.maximum(largest / np.float32(LARGEST_CODE), np.float32(SMALLEST_SCALE))
    exact = rows.astype(np.float64)
    wide = scales.astype(np.float64)[:, None]
    # A scale that was rounded down would lead one step beyond.
    codes = np.clip(np.rint(exact / wide), -LARGEST_CODE, LARGEST_CODE)
    shown = codes * wide
    coded.codes[part] = codes
    coded.scales[part] = scales
    coded.code_norms[part] = _upper_norms(shown)
    coded.squares[part] = _squares(exact)
    coded.error_norms[part] = _upper_norms(np.subtract(exact, shown, out=exact))


def _squares(rows: Float64s) -> Float64s:
    return np.einsum("ij,ij->i", rows, rows)


def _upper_norms(rows: Float64s) -> Float32s:
    """Return float32 numbers no smaller than the rows' lengths; 0 only for zeros."""
    lengths = upper_lengths(_squares(rows), rows.shape[1])
    rounded = lengths.astype(np.float32)
    above = np.nextafter(rounded, np.float32(np.inf))
    return np.where(rounded < lengths, above, rounded)


def _means(vectors: Vectors, offsets: Labels) -> Float32s:
    """Return the mean of each cluster, zeros where it is empty; only their order matters."""
    sizes = np.diff(offsets)
    means = np.zeros((len(sizes), vectors.shape[1]), dtype=np.float32)
    filled = np.flatnonzero(sizes)
    if len(filled):
        sums = np.add.reduceat(vectors, offsets[:-1][filled], axis=0)
        means[filled] = sums / sizes[filled, None]
    return means


def maxima(values: npt.NDArray[Any], starts: Labels) -> Float64s:
    """Return the largest of ``values[starts[p] : starts[p + 1]]`` for each ``p``, 0 of none."""
    largest = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        largest[filled] = np.maximum.reduceat(values, starts[:-1][filled])
    return largest


def _checked_offsets(value: Any, count: int) -> Labels:
    offsets = _checked_integers("offsets", value, None, 0, count)
    rising = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == count
    if not rising or (np.diff(offsets) < 0).any():
        raise ConfigError(
            "offsets that do not cut the vectors into clusters",
            where="offsets",
            found=f"{len(offsets)} numbers, {offsets[:1]} to {offsets[-1:]}",
            valid=f"clusters + 1 integers from 0 to {count}, never falling",
        )
    return offsets


def _checked_integers(name: str, value: Any, count: int | None, low: int, high: int) -> Labels:
    array = np.asarray(value)
    fits = array.ndim == 1 and (count is None or len(array) == count)
    if not fits or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(
            "not a list of integers of that length",
            where=name,
            found=f"shape {array.shape}, {array.dtype}",
            valid=f"{'n' if count is None else count} integers",
        )
    if array.size and not low <= int(array.min()) <= int(array.max()) <= high:
        raise ConfigError(
            "an integer outside its range",
            where=name,
            found=f"{array.min()} to {array.max()}",
            valid=f"{low} to {high}",
        )
    return array.astype(np.int64, copy=False)
