"""Local objects whose own methods can run on a client that gathers its callers' work.

A store or reranker of a known class does all it does itself: filters, thresholds, look-ups, its
errors. For one call it is replaced by a *stand-in*: the same object, but for the client that
computes, which brings its work to an owned engine. So nothing of what the class does around that is
written here again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from rag_accel.engine_api import Document, Engine, PrimitiveKind, RerankBatch, SearchQuery

#: returns a class's method as its program wrote it
PlainMethod = Callable[[type, str], Any]


@dataclass(frozen=True, slots=True)
class ClientWork:
    """What a stand-in's client has an engine do.

    Args:
        client: the object that computes; what shares it shares an engine.
        name: what its engine is called.
        make: builds the engine.
        kind: what the engine does.
        payload: what to do.
        size: how many items that is.
    """

    client: Any
    name: str
    make: Callable[[], Engine]
    kind: PrimitiveKind
    payload: Any
    size: int = 1


class Ask(Protocol):
    """A function that brings work to the scheduler for the run that a stand-in is made for."""

    def __call__(
        self, work: ClientWork, plain: Callable[[], Any], read: Callable[[Any], Any]
    ) -> Any:
        """Return ``read`` of what the engine made of it; ``plain()`` after an error of ours."""
        ...

    async def in_pool(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call off the loop, in more threads than the loop's executor has."""
        ...


def stand_in_for(obj: Any, cls: type, method: PlainMethod, ask: Ask) -> Any | None:
    """Return what may replace ``obj``, which is a plain ``cls``, for one call; None if nothing."""
    known = _known(cls, method)
    return known.make(obj, ask) if known is not None and known.fits(obj) else None


def has_stand_ins(cls: type, method: PlainMethod) -> bool:
    """Tell whether objects of a class may have stand-ins."""
    return _known(cls, method) is not None


def describe_stand_in(obj: Any, cls: type, method: PlainMethod) -> str | None:
    """Return how an object with stand-ins runs; None if it has none."""
    known = _known(cls, method)
    return known.says if known is not None and known.fits(obj) else None


def _replaced(obj: Any, **attributes: Any) -> Any:
    """Return an object of the same class and state, but for these attributes."""
    other = object.__new__(type(obj))
    for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        if hasattr(obj, name):
            object.__setattr__(other, name, getattr(obj, name))
    object.__setattr__(other, "__dict__", {**vars(obj), **attributes})
    return other


# FAISS -----------------------------------------------------------------------------------------

#: numbers in an index from which a single scan takes longer than asking the scheduler, about 0.5 ms
MIN_NUMBERS = 2_000_000
#: more results than this are fetched plainly
MAX_K = 1_000


def _is_large_and_flat(store: Any) -> bool:
    from rag_accel.engines.retrieval.flat_index_engine import is_searchable

    return is_searchable(store.index) and store.index.ntotal * store.index.d >= MIN_NUMBERS


def _faiss(store: Any, ask: Ask) -> Any:
    other = _replaced(store, index=_Index(store.index, ask))
    for name in ("similarity_search_with_score_by_vector", _DIVERSE):
        setattr(other, f"a{name}", partial(ask.in_pool, getattr(other, name)))
    return other


_DIVERSE = "max_marginal_relevance_search_with_score_by_vector"


class _Index:
    """A flat FAISS index whose searches share calls with those of others."""

    def __init__(self, index: Any, ask: Ask) -> None:
        self._index, self._ask = index, ask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, x: Any, k: Any, **more: Any) -> tuple[Any, Any]:
        def plain() -> tuple[Any, Any]:
            return self._index.search(x, k, **more)

        is_usual = type(k) is int and 0 < k <= MAX_K and not more
        if not is_usual or np.shape(x) != (1, self._index.d) or not np.isfinite(x).all():
            return plain()
        work = ClientWork(
            self._index,
            "retrieval",
            self._engine,
            PrimitiveKind.SEARCHING,
            SearchQuery(np.array(x[0], dtype=np.float32), k),
        )
        return self._ask(work, plain, lambda hits: self._as_faiss(hits, k))

    def _engine(self) -> Engine:
        from rag_accel.engines.retrieval.flat_index_engine import FlatIndexEngine

        return FlatIndexEngine(self._index)

    def _as_faiss(self, hits: Any, k: int) -> tuple[Any, Any]:
        from rag_accel.engines.retrieval.flat_index_engine import sign

        far = np.finfo(np.float32).max
        places = np.full((1, k), -1, dtype=np.int64)
        numbers = np.full((1, k), far if sign(self._index) < 0 else -far, dtype=np.float32)
        for at, hit in enumerate(hits):
            places[0, at] = int(hit.document.id)
            numbers[0, at] = sign(self._index) * hit.score
        return numbers, places


# Cross-encoders --------------------------------------------------------------------------------


def _is_local_cross_encoder(reranker: Any) -> bool:
    from rag_accel.engines.embedding.models import has_plain_predict

    model = reranker.model
    # Those with more scores than one for a pair have a say of their own in which counts. A
    # ``predict`` that was replaced may score a list as a whole, or look at who calls it.
    return (
        _full_name(type(model)) == _CROSS_ENCODER
        and has_plain_predict(model.client)
        and model.client.num_labels == 1
    )


def _cross_encoder_reranker(reranker: Any, ask: Ask) -> Any:
    model = reranker.model
    return _replaced(reranker, model=_replaced(model, client=_Scorer(model.client, ask)))


class _Scorer:
    """A cross-encoder whose pairs share batches with those of others."""

    def __init__(self, client: Any, ask: Ask) -> None:
        self._client, self._ask = client, ask

    def predict(self, pairs: Any) -> Any:
        queries = {query for query, _ in pairs}
        if len(queries) != 1:
            return self._client.predict(pairs)
        documents = tuple(Document(str(at), text) for at, (_, text) in enumerate(pairs))
        work = ClientWork(
            self._client,
            "rerank",
            self._engine,
            PrimitiveKind.RERANKING,
            RerankBatch(queries.pop(), documents),
            len(documents),
        )
        return self._ask(work, lambda: self._client.predict(pairs), _in_order)

    def _engine(self) -> Engine:
        from rag_accel.engines.embedding.models import default_threads
        from rag_accel.engines.rerank.engine import RerankEngine

        client = self._client
        on_cpu = client.device.type == "cpu"

        def predict(pairs: Any) -> Any:
            return client.predict(pairs)  # looked up each time: it may be replaced

        return RerankEngine(predict, max_threads=default_threads(on_cpu), pure=True)


def _in_order(ranked: Any) -> Any:
    scores = np.empty(len(ranked), dtype=np.float32)
    for found in ranked:
        scores[int(found.document.id)] = found.score
    return scores


# What is known -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A class whose objects can have stand-ins.

    Args:
        methods: what makes it what it is.
        fits: tells whether a stand-in of an object is of use.
        make: makes one.
        says: how its objects run then.
    """

    methods: tuple[str, ...]
    fits: Callable[[Any], bool]
    make: Callable[[Any, Ask], Any]
    says: str


_CROSS_ENCODER = "langchain_community.cross_encoders.huggingface.HuggingFaceCrossEncoder"

_KNOWN: Mapping[str, _Known] = {
    "langchain_community.vectorstores.faiss.FAISS": _Known(
        (
            "similarity_search",
            "similarity_search_by_vector",
            "similarity_search_with_score",
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search",
            "max_marginal_relevance_search_by_vector",
            _DIVERSE,
            f"a{_DIVERSE}",
            "asimilarity_search_with_score_by_vector",
        ),
        _is_large_and_flat,
        _faiss,
        "recognised store: its own methods run; searches of all requests share looks at its index",
    ),
    "langchain_classic.retrievers.document_compressors.cross_encoder_rerank.CrossEncoderReranker": (
        _Known(
            ("compress_documents",),
            _is_local_cross_encoder,
            _cross_encoder_reranker,
            "recognised reranker: its own method runs; pairs of all requests share batches",
        )
    ),
}

_of_classes: WeakKeyDictionary[type, _Known | None] = WeakKeyDictionary()


def _known(cls: type, method: PlainMethod) -> _Known | None:
    """Return what is known of a class: it is one of those above or does what that does."""
    if cls not in _of_classes:
        base = next((base for base in cls.__mro__ if _full_name(base) in _KNOWN), None)
        _of_classes[cls] = None if base is None else _unless_changed(cls, base, method)
    return _of_classes[cls]


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _unless_changed(cls: type, base: type, method: PlainMethod) -> _Known | None:
    """Return what is known of ``base`` if ``cls`` does what that does."""
    known = _KNOWN[_full_name(base)]
    if any(method(cls, name) is not method(base, name) for name in known.methods):
        return None
    return known
