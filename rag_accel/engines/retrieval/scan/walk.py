"""Walk over pieces of clusters in one thread and keep what may be among the nearest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from rag_accel.engines.retrieval.documents import Labels, Mask
from rag_accel.engines.retrieval.scan.candidates import (
    NO_CANDIDATES,
    Candidates,
    Settler,
    joined,
)
from rag_accel.engines.retrieval.scan.codes import Float64s
from rag_accel.engines.retrieval.scan.integer_product import Products, exact_product
from rag_accel.engines.retrieval.scan.plan import Piece

MAX_CANDIDATES = 1 << 17  # held by one walker; beyond, they are settled at once
MAX_RAW = 1 << 13  # survivors of whole blocks after which each is looked at


@dataclass(slots=True)
class Walker:
    """Multiply pieces and keep candidates. Used by one thread; several share one ``Settler``.

    ``allowance`` is the certificate's for the settler's queries.
    ``is_allowed`` ``[n]``, by row of the caller's vectors, says which may be found; None allows
    all.
    """

    settler: Settler
    allowance: Float64s
    is_allowed: Mask | None
    _wanted: Mask | None = None
    _raw: list[tuple[Labels, Labels, Products]] = field(default_factory=list)
    _num_raw: int = 0
    _kept: Candidates = NO_CANDIDATES
    _fresh: list[Candidates] = field(default_factory=list)
    _num_fresh: int = 0

    def walk(self, pieces: Iterable[Piece]) -> Candidates:
        """Return the candidates of all pieces; each pair of a query and a row is wanted once."""
        for piece in pieces:
            if self._num_raw >= MAX_RAW or piece.wanted is not self._wanted:
                self._look_closer()
                self._wanted = piece.wanted
            self._visit(piece)
        self._look_closer()
        return joined([self._kept, *self._fresh])

    def _visit(self, piece: Piece) -> None:
        settler, queries = self.settler, piece.queries
        rows, coded, certificate = settler.codes.rows, settler.coded, settler.certificate
        part = slice(piece.start, piece.stop)
        products = exact_product()(coded.codes[queries], rows.codes[part])
        block = certificate.comparable(products, rows, part, coded.scales[queries])
        thresholds = certificate.thresholds(
            self.allowance, settler.reached, piece.max_error, piece.max_length
        )
        found = (block >= thresholds[queries, None]).ravel().nonzero()[0]
        if len(found):
            query, column = np.divmod(found, piece.stop - piece.start)
            self._raw.append((queries[query], column + piece.start, products.ravel()[found]))
            self._num_raw += len(found)

    def _look_closer(self) -> None:
        """Bound each survivor by its own lengths instead of its block's largest."""
        if not self._raw:
            return
        settler = self.settler
        query, row, products = (np.concatenate(column) for column in zip(*self._raw, strict=True))
        self._raw.clear()
        self._num_raw = 0
        counts = self._is_wanted(query, row)
        query, row, products = query[counts], row[counts], products[counts]
        bounds = settler.certificate.of_codes(
            products, settler.codes.rows, row, settler.coded, query
        )
        fresh = settler.narrowed(Candidates(query, row, bounds.lower, bounds.upper))
        self._fresh.append(fresh)
        self._num_fresh += len(fresh)
        if self._num_fresh > max(MAX_RAW, len(self._kept)):
            self._kept = settler.narrowed(joined([self._kept, *self._fresh]))
            if len(self._kept) > MAX_CANDIDATES:
                self._kept = settler.settled(self._kept)
            self._fresh.clear()
            self._num_fresh = 0

    def _is_wanted(self, query: Labels, row: Labels) -> Mask:
        assert self._wanted is not None, "survivors without a piece"
        codes = self.settler.codes
        places = codes.places_of(row)
        is_wanted = self._wanted[query, places]
        if self.is_allowed is not None:
            is_wanted &= self.is_allowed[row + codes.shifts[places]]
        return is_wanted
