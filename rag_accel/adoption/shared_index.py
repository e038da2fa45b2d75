"""A document index searched by vector, or by words too, on engines whose steps callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rag_accel.accelerator import Accelerator, RequestIdentity, Work, current_request, keeping_texts
from rag_accel.engine_api import (
    Document,
    Engine,
    EngineRequest,
    HybridQuery,
    PrimitiveKind,
    ScoredDocument,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, check_text, living
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec, fuse_rankings
from rag_accel.engines.retrieval.vectors.checks import checked_ids, checked_query, copy_document
from rag_accel.interception.fallback import awith_fallback, with_fallback
from rag_accel.interception.identity import identity_for
from rag_accel.system.locks import RenewedLock

Hits = tuple[ScoredDocument, ...]

_UNMADE = "of its own, made with the first of them"


class SharedIndex:
    """An index created with its first vectors, which set its dimension.

    Args:
        index: the index, if there is one already.
        normalize: scale vectors to length one, documents' and queries' alike.
    """

    def __init__(self, index: DocumentIndex | None, normalize: bool) -> None:
        self.index = index
        self.normalize = normalize
        self._making = RenewedLock()
        self._lexical: dict[LexicalSpec, LexicalIndex] = {}

    def of_dimension(self, dimension: int) -> DocumentIndex:
        """Return the index; a flat one for cosine or inner product is made if there is none."""
        with self._making.lock:
            if self.index is None:
                self.index = DocumentIndex(IndexSpec(dimension))
            return self.index

    def lexical(self, spec: LexicalSpec) -> LexicalIndex | None:
        """Return the ranking by words, one for all accelerators; None if there is no index."""
        index = self.index
        if index is None:
            return None
        with self._making.lock:
            known = self._lexical.get(spec)
            if known is None or known.index is not index:
                known = self._lexical[spec] = LexicalIndex(index, spec)
            return known

    def describe(self, accelerator: Accelerator, hybrid: HybridSpec) -> str:
        """Return which engines of an accelerator run searches, by vector and hybrid ones."""
        index = self.index
        by_vector = by_both = None
        if index is not None:
            by_vector = accelerator.engine_of(index)
            by_both = accelerator.engine_of(index, variant_of(hybrid))
        engines = (
            f"a component of this library: engine {by_vector or _UNMADE}, for searches by vector;"
            f" engine {by_both or _UNMADE}, for hybrid ones; callers share their steps"
        )
        return "; ".join([engines, *(() if index is None else index.tier_text)])

    def add(self, documents: Sequence[Document], vectors: Sequence[Sequence[float]]) -> None:
        """Take documents, replacing those whose ids are present; all or none."""
        if not documents:
            return
        scaled, index = self.scaled(vectors), self.index
        if index is None:
            index = DocumentIndex(IndexSpec(scaled.shape[1] if scaled.ndim == 2 else 1))
            index.add(documents, scaled)
            with self._making.lock:
                if self.index is None:
                    self.index = index
                    return
                index = self.index
        index.add(documents, scaled)

    def delete(
        self,
        ids: Iterable[str],
        own: Accelerator | None = None,
        forms: Callable[[Document], Iterable[str]] = lambda document: (document.text,),
    ) -> None:
        """Forget documents; unknown ids are ignored.

        What engines keep of their texts goes, too: in the namespace of the accelerator, else of the
        run, else in all of this process.

        Args:
            ids: of the documents.
            own: the accelerator of the store.
            forms: returns the texts of a document as they stand in prompts.
        """
        wanted = checked_ids(ids)
        if self.index is None:
            return
        keeping = keeping_texts(_namespace(own))
        gone = self.index.get(wanted) if keeping else []
        self.index.delete(wanted)
        if gone:
            texts = [text for document in gone for text in forms(document)]
            for accelerator in keeping:
                accelerator.forget_texts(texts)

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return the documents of these ids, leaving out unknown ids."""
        wanted = checked_ids(ids)
        return [] if self.index is None else self.index.get(wanted)

    def vectors(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return the vectors of these ids, leaving out unknown ids."""
        return {} if self.index is None else self.index.vectors(ids)

    def search(self, query: SearchQuery, own: Accelerator | None) -> Hits:
        """Return the nearest documents, best first; raises what ``DocumentIndex.search`` raises."""
        index = self.index
        if index is None:
            return ()
        query = self._query(query)
        work, plain = partial(_work, index, query, self), partial(_search_alone, index, query)
        return search_or_plain(own, work, plain)

    async def asearch(self, query: SearchQuery, own: Accelerator | None) -> Hits:
        """Return the nearest documents without blocking the loop."""
        index = self.index
        if index is None:
            return ()
        query = self._query(query)

        async def plain() -> Hits:
            return _search_alone(index, query)

        return await asearch_or_plain(own, partial(_work, index, query, self), plain)

    def search_among(self, query: SearchQuery, is_wanted: Callable[[Document], bool]) -> Hits:
        """Return the nearest of the documents that a condition holds for, best first.

        They are compared one by one, here; equal scores are ordered by insertion. Raises what the
        condition and ``DocumentIndex.search`` raise.
        """
        index = self.index
        if index is None:
            return ()
        vector = checked_query(self._query(query).vector, index.spec.dimension)
        with index.reading():
            view = index.view()
            documents = view.documents
            labels = [at for at in documents.labels().tolist() if is_wanted(documents[at])]
            rows = view.vectors.gather(np.asarray(labels, dtype=np.int64))
            scores = rows.astype(np.float64) @ vector.astype(np.float64).reshape(-1)
            best = np.argsort(-scores, kind="stable")[: max(query.k, 0)].tolist()
            return tuple(
                ScoredDocument(copy_document(documents[labels[at]]), float(scores[at]))
                for at in best
            )

    def documents_that(self, is_wanted: Callable[[Document], bool]) -> list[Document]:
        """Return copies of the documents that a condition holds for, by insertion."""
        index = self.index
        if index is None:
            return []
        with index.reading():
            documents = index.view().documents
            labels = documents.labels().tolist()
            return [copy_document(documents[at]) for at in labels if is_wanted(documents[at])]

    def _query(self, query: SearchQuery) -> SearchQuery:
        vector = self.scaled([query.vector])[0]
        return SearchQuery(vector, query.k, query.where, query.nprobe)

    def scaled(self, vectors: Sequence[Sequence[float]]) -> Any:
        """Return vectors as they are held and looked for, ``[n, dim], float64``.

        A zero vector stays one, and so does one that is not finite, which the index refuses.
        """
        rows = np.asarray(vectors, dtype=np.float64)
        if not self.normalize or rows.ndim != 2:
            return rows
        # The square of 1e200 is no float64 any more. A power of two changes no digit.
        exponents = np.frexp(np.abs(rows).max(axis=1, initial=0.0, keepdims=True))[1]
        near_one = np.ldexp(rows, -exponents)
        lengths = np.sqrt(np.square(near_one).sum(axis=1, keepdims=True))
        is_usual = (lengths > 0) & np.isfinite(lengths)
        return np.where(is_usual, near_one / np.where(is_usual, lengths, 1.0), rows)


def _search_alone(index: DocumentIndex, query: SearchQuery) -> Hits:
    return tuple(index.search([query.vector], query.k, query.where, query.nprobe)[0])


def search_or_plain(
    own: Accelerator | None, work: Callable[[RequestIdentity], Work], plain: Callable[[], Hits]
) -> Hits:
    """Return what an engine finds; ``plain()`` where nothing is scheduled, or after an error."""
    identity = identity_for(own)
    if identity is None:
        return plain()
    leaves = identity.accelerator.leaves
    return with_fallback(
        identity.accelerator, lambda: leaves.compute(identity, work(identity)), plain, "retrieval"
    )


async def asearch_or_plain(
    own: Accelerator | None,
    work: Callable[[RequestIdentity], Work],
    plain: Callable[[], Awaitable[Hits]],
) -> Hits:
    """Do as ``search_or_plain`` without blocking the loop."""
    identity = identity_for(own)
    if identity is None:
        return await plain()
    leaves = identity.accelerator.leaves
    return await awith_fallback(
        identity.accelerator, lambda: leaves.acompute(identity, work(identity)), plain, "retrieval"
    )


def _work(
    index: DocumentIndex, query: SearchQuery, holder: SharedIndex, identity: RequestIdentity
) -> Work:
    # Never shared: an equal search that began before a change must not answer one that came after.
    make = partial(_engine, index)
    engine = identity.accelerator.own(index, "retrieval", make, holder=holder)
    return Work(engine, PrimitiveKind.SEARCHING, query)


def _engine(index: DocumentIndex) -> Engine:
    return RetrievalEngine(index)


def _namespace(own: Accelerator | None) -> str | None:
    run = current_request.get()
    accelerator = own or (run.accelerator if run is not None else None)
    return None if accelerator is None else accelerator.options.namespace


def hybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Return the documents nearest by vector and by words, best first; see ``HybridEngine``.

    Args:
        shared: the index; one without documents finds nothing.
        query: with the vector as the store's embeddings made it.
        spec: how the rankings are made and fused; searches of equal ones share an engine.
        own: schedules the search; None for the current run's, or the process default.

    Raises:
        ConfigError: a ``k``, weight or depth out of range, or a wrong filter, text or vector.
        EngineOutputError: a vector with NaN.
    """
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    query = _scaled(shared, query)
    plain = partial(_hybrid_search_alone, lexical, spec, query)
    return search_or_plain(own, partial(_hybrid_work, shared, lexical, spec, query), plain)


async def ahybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Do as ``hybrid_search`` without blocking the loop."""
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    query = _scaled(shared, query)

    async def plain() -> Hits:
        # Not on the loop: after a change, all documents are read.
        return await asyncio.to_thread(_hybrid_search_alone, lexical, spec, query)

    return await asearch_or_plain(own, partial(_hybrid_work, shared, lexical, spec, query), plain)


def hybrid_search_among(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, is_wanted: Callable[[Document], bool]
) -> Hits:
    """Return the best of the documents that a condition holds for; raises as ``hybrid_search``.

    They are compared one by one, here. Terms weigh as in a search of all documents.
    """
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    spec = spec.of_query(query)
    spec.check_k(query.k)
    check_text(query.text, "text")
    snapshot, k = lexical.current(), max(0, query.k)
    known = snapshot.search(query.text, len(snapshot.documents), query.where)
    worded = [hit for hit in known if is_wanted(hit.document)]
    depth = max(spec.dense_depth, k)
    dense = shared.search_among(SearchQuery(query.vector, depth), is_wanted)
    hits = fuse_rankings(dense, worded[: max(spec.lexical_depth, k)], spec)
    return tuple(living(lexical.index, snapshot.version, hits)[:k])


def variant_of(spec: HybridSpec) -> str:
    """Return which of an index's engines searches by a specification."""
    return f"hybrid {spec}"


def _scaled(shared: SharedIndex, query: HybridQuery) -> HybridQuery:
    return replace(query, vector=shared.scaled([query.vector])[0])


def _hybrid_search_alone(lexical: LexicalIndex, spec: HybridSpec, query: HybridQuery) -> Hits:
    engine = _hybrid_engine(lexical, spec)
    engine.submit([EngineRequest(WorkId("alone"), "alone", PrimitiveKind.SEARCHING, query)])
    (output,) = engine.step(StepBudget())
    if output.error is not None:
        raise output.error
    return output.value


def _hybrid_work(
    shared: SharedIndex,
    lexical: LexicalIndex,
    spec: HybridSpec,
    query: HybridQuery,
    identity: RequestIdentity,
) -> Work:
    # Never shared: an equal search that began before a change must not answer one after it.
    make, variant = partial(_hybrid_engine, lexical, spec), variant_of(spec)
    engine = identity.accelerator.own(lexical.index, "hybrid", make, variant, holder=shared)
    return Work(engine, PrimitiveKind.SEARCHING, query)


def _hybrid_engine(lexical: LexicalIndex, spec: HybridSpec) -> Engine:
    return HybridEngine(lexical.index, spec, lexical=lexical)
