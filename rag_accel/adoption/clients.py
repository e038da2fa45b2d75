"""Clients of proxies: a FAISS index and a cross-encoder whose work shares steps with others'."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from rag_accel.adoption.proxies import Ask, ClientWork, ProxyClass, replaced
from rag_accel.engine_api import Document, Engine, PrimitiveKind, RerankBatch, SearchQuery
from rag_accel.engines.retrieval.flat_index_engine import (
    FlatIndexEngine,
    is_searchable,
    measured_scan,
)
from rag_accel.engines.retrieval.flat_products import sign
from rag_accel.engines.retrieval.vectors.search_threads import SearchThreads
from rag_accel.system.locks import ForkedAnew

#: numbers that a search reads from which on it takes longer than asking the scheduler, about 0.5 ms
MIN_NUMBERS = 2_000_000
#: searches for more results than this bypass the shared step
MAX_K = 1_000
#: what the engine of a cross-encoder is called
RERANK = "rerank"
#: what FAISS says of a place that is not filled, or minus that
_FARTHEST = float(np.finfo(np.float32).max)
#: the classes of indexes that engines search, in the words of reasons and tables
SEARCHED_INDEXES = "`IndexFlatL2` and `IndexFlatIP`"


def index_obstacle(index: Any) -> str | None:
    """Return why no owned engine searches a FAISS index; None if a search takes long enough."""
    if isinstance(index, FaissIndexClient):  # of a proxy, whose search shared no call
        return "the store itself makes a search that overlaps no other"
    if not is_searchable(index):
        names = SEARCHED_INDEXES.replace("`", "")
        return f"its index is a {type(index).__name__}; searches of {names} run"
    if index.ntotal * index.d >= MIN_NUMBERS:
        return None
    return f"small: {index.ntotal} x {index.d} numbers, searched from {MIN_NUMBERS:,} on"


def is_on_gpu(index: Any) -> bool:
    """Tell whether a FAISS index lies on a GPU, where it takes one search at a time."""
    return type(index).__name__.startswith("Gpu")


def faiss_store_row(
    attribute: str,
    methods: tuple[str, ...],
    adapt: Callable[[Any, Ask], Any] = lambda proxy, ask: proxy,
) -> ProxyClass:
    """Return what is known of a class of stores that search the FAISS index in an attribute.

    ``adapt`` returns a proxy as the run that asks needs it.
    """

    def proxy(store: Any, ask: Ask) -> Any:
        client = FaissIndexClient(getattr(store, attribute), ask)
        return adapt(replaced(store, **{attribute: client}), ask)

    return ProxyClass(
        methods,
        lambda store: index_obstacle(getattr(store, attribute)),
        proxy,
        "store",
        "its own methods run; searches of all requests share looks at its index",
        (
            f"searches that read fewer than {MIN_NUMBERS:,} numbers",
            f"another index than {SEARCHED_INDEXES}",
        ),
    )


class UnderWay(ForkedAnew):
    """Numbers of the running searches of each index or client in this process."""

    def renew(self) -> None:
        """Reset after a fork: searches of other threads do not run here."""
        self._lock = threading.RLock()  # a signal's handler may search, too
        self._counts: dict[Hashable, int] = {}

    def begin(self, key: Hashable) -> int:
        """Count a search, which ``end`` must follow; return how many run with it."""
        with self._lock:
            running = self._counts[key] = self._counts.get(key, 0) + 1
        return running

    def end(self, key: Hashable) -> None:
        """Count a search no longer; nothing if a fork has made it another process's."""
        with self._lock:
            left = self._counts.get(key, 0) - 1
            if left > 0:
                self._counts[key] = left
            else:
                self._counts.pop(key, None)


_searches = UnderWay()
#: what searches of one query took in this process
_alone_threads = SearchThreads()


class FaissIndexClient:
    """A flat FAISS index whose searches share calls with those of others."""

    def __init__(self, index: Any, ask: Ask) -> None:
        self._index, self._ask = index, ask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, x: Any, k: Any, **more: Any) -> tuple[Any, Any]:
        """Return distances ``[1, k]`` float32 and places ``[1, k]`` int64, as the index does."""
        plain = partial(self._index.search, x, k, **more)
        is_one = type(x) is np.ndarray and x.ndim == 2 and len(x) == 1
        if more or not is_one or type(k) is not int or not 0 < k <= MAX_K:
            return plain()
        # What is done for a search alone is little: after a scan all of it has left the caches.
        is_alone = _searches.begin(id(self._index)) == 1
        try:
            if is_alone:  # nothing is to be shared, and few searches are worth a second core
                return measured_scan(self._index, x, k, _alone_threads)
            if x.shape[1] != self._index.d or not np.isfinite(x).all():
                return plain()
            return self._asked(x, k, plain)
        finally:
            _searches.end(id(self._index))

    def _asked(self, x: Any, k: int, plain: Callable[[], Any]) -> tuple[Any, Any]:
        work = ClientWork(
            self._index,
            "retrieval",
            self._engine,
            PrimitiveKind.SEARCHING,
            SearchQuery(np.array(x[0], dtype=np.float32), k),
        )
        return self._ask.compute(work, plain, lambda hits: self._as_faiss(hits, k))

    def _engine(self) -> Engine:
        return FlatIndexEngine(self._index)

    def _as_faiss(self, hits: Any, k: int) -> tuple[Any, Any]:
        towards = sign(self._index)
        missing = k - len(hits)
        places = [*(int(hit.document.id) for hit in hits), *[-1] * missing]
        numbers = [*(towards * hit.score for hit in hits), *[-towards * _FARTHEST] * missing]
        return np.array([numbers], dtype=np.float32), np.array([places], dtype=np.int64)


def scorer_obstacle(client: Any) -> str | None:
    """Return why no engine scores the pairs of a cross-encoder; None if it gives each one score.

    A ``predict`` that was replaced may score a list as a whole, or look at who calls it.
    """
    from rag_accel.engines.embedding.models import has_plain_predict

    if not has_plain_predict(client):
        return "the predict of its model is replaced, or is another class's"
    if client.num_labels != 1:
        return f"its model gives {client.num_labels} scores a pair; a model with one label runs"
    return None


class CrossEncoderClient:
    """A cross-encoder whose pairs share batches with those of others."""

    def __init__(self, client: Any, ask: Ask) -> None:
        self._client, self._ask = client, ask

    def predict(self, pairs: Any) -> Any:
        """Return one float32 score for each pair of a query and a text, in order."""
        queries = {query for query, _ in pairs}
        if len(queries) != 1:
            return self._client.predict(pairs)
        documents = tuple(Document(str(at), text) for at, (_, text) in enumerate(pairs))
        work = ClientWork(
            self._client,
            RERANK,
            partial(cross_encoder_engine, self._client),
            PrimitiveKind.RERANKING,
            RerankBatch(queries.pop(), documents),
            len(documents),
        )
        return self._ask.compute(work, lambda: self._client.predict(pairs), _in_order)


def cross_encoder_engine(client: Any) -> Engine:
    """Return an engine that scores pairs as a cross-encoder of sentence-transformers does."""
    from rag_accel.engines.embedding.models import default_threads
    from rag_accel.engines.helper_threads import default_parallel
    from rag_accel.engines.rerank.engine import RerankEngine

    def predict(pairs: Any) -> Any:
        return client.predict(pairs)  # looked up each time: it may be replaced

    threads = default_threads(client.device.type == "cpu")
    return RerankEngine(
        predict, max_threads=threads, parallel=default_parallel(threads), pure=True, is_local=True
    )


def _in_order(ranked: Any) -> Any:
    scores = np.empty(len(ranked), dtype=np.float32)
    for found in ranked:
        scores[int(found.document.id)] = found.score
    return scores
