"""The meter of the calls of a LlamaIndex program that pass the scheduler.

LlamaIndex's start events tell of every call of a model, embedding, retriever and reranker, wherever
it is made; the wrappers tell which of them waited for their turn or were reported. An event is
covered if it comes from inside a leaf, or if a leaf runs in the event's span or below it. What has
no events (stores, graph stores, other postprocessors) is known from the wrappers alone. A retriever
that has others do the work is no leaf and not counted.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.embedding import EmbeddingStartEvent
from llama_index.core.instrumentation.events.llm import LLMChatStartEvent, LLMCompletionStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalStartEvent
from llama_index.core.instrumentation.span import SimpleSpan, active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

from llama_index_rag_accel.option_readers import parts_of
from rag_accel.interception.coverage import Coverage, CoverageRow, Meter, OpenMeters
from rag_accel.interception.leaf_call import NotedCall, is_inside_leaf
from rag_accel.interception.leaf_table import is_composite

__all__ = ["Coverage", "CoverageRow", "coverage"]

_NAMES = {
    "BaseLLM": "language model",
    "MultiModalLLM": "language model",
    "BaseEmbedding": "embedding",
    "MultiModalEmbedding": "embedding",
    "BaseSparseEmbedding": "embedding",
    "BaseRetriever": "retriever",
    "BasePydanticVectorStore": "vector store",
    "PropertyGraphStore": "graph store",
    "BaseNodePostprocessor": "postprocessor",
}
_EVENTS: dict[type[BaseEvent], str] = {
    LLMChatStartEvent: "language model",
    LLMCompletionStartEvent: "language model",
    EmbeddingStartEvent: "embedding",
    RetrievalStartEvent: "retriever",
    ReRankStartEvent: "postprocessor",
}


@dataclass(slots=True)
class _Started:
    """A call that an event told of, and whether a leaf was seen to do its work."""

    kind: str
    is_covered: bool


class LlamaIndexMeter(Meter):
    """Leaf calls by kind."""

    def __init__(self) -> None:
        super().__init__(_NAMES)
        self._past: Counter[str] = Counter()
        self._parents: dict[str, str | None] = {}
        self._owners: dict[str, Any] = {}
        self._started: dict[str, list[_Started]] = {}
        self._cached: Counter[str] = Counter()

    def _rows(self) -> list[CoverageRow]:
        past = self._past + Counter(call.kind for call in self._uncovered())
        return self._rows_with(past, self._cached)

    def note(self, call: NotedCall) -> None:
        kind = self._kind_of(call.obj)
        with self._lock:
            self._tally.note(kind, call)
            if call.was_admitted:
                return
            if call.way is not None:
                self._counts[kind, call.way] += 1
                self._cover(kind, active_span_id.get())
            elif kind not in _EVENTS.values():
                self._past[kind] += 1

    def began(self, span: str, parent: str | None, owner: Any) -> None:
        """Learn of a span, of the one around it and of the object whose method it is."""
        with self._lock:
            self._parents[span] = parent
            self._owners[span] = owner

    def saw(self, event: BaseEvent) -> None:
        kind = _EVENTS.get(type(event)) or next(
            (kind for known, kind in _EVENTS.items() if isinstance(event, known)), None
        )
        span = event.span_id
        if kind is None or span is None:
            return
        with self._lock:
            if kind == "retriever" and is_composite(self._owners.get(span)):
                return
            is_covered = kind != "retriever" and is_inside_leaf()
            self._started.setdefault(span, []).append(_Started(kind, is_covered))

    def ended(self, span: str) -> None:
        """Learn that a span is over: what a cache answered in it needed no leaf."""
        with self._lock:
            if getattr(self._owners.pop(span, None), "embeddings_cache", None) is None:
                return
            for call in self._started.get(span, ()):
                if not call.is_covered:
                    call.is_covered = True
                    self._cached[call.kind] += 1

    def _cover(self, kind: str, span: str | None) -> None:
        """Count what a leaf does for the nearest call of its kind that events told of."""
        while span is not None:
            for call in self._started.get(span, ()):
                if call.kind == kind and not call.is_covered:
                    call.is_covered = True
                    return
            span = self._parents.get(span)

    def _uncovered(self) -> Iterator[_Started]:
        return (call for calls in self._started.values() for call in calls if not call.is_covered)


class _Spans(BaseSpanHandler[SimpleSpan]):
    _meters: dict[str, LlamaIndexMeter] = PrivateAttr(default_factory=dict)

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> SimpleSpan | None:
        meter = _open.here(instance)
        if meter is not None:
            self._meters[id_] = meter
            meter.began(id_, parent_span_id, instance)
        return None

    def meter_of(self, span: str | None) -> LlamaIndexMeter | None:
        """Return the meter that was told of a span which is not over."""
        return None if span is None else self._meters.get(span)

    def prepare_to_exit_span(self, id_: str, *args: Any, **kwargs: Any) -> SimpleSpan | None:
        self._end(id_)
        return None

    def prepare_to_drop_span(self, id_: str, *args: Any, **kwargs: Any) -> SimpleSpan | None:
        self._end(id_)
        return None

    def _end(self, id_: str) -> None:
        meter = self._meters.pop(id_, None)
        if meter is not None:
            meter.ended(id_)


class _Events(BaseEventHandler):
    _spans: _Spans = PrivateAttr()

    def __init__(self, spans: _Spans) -> None:
        super().__init__()
        self._spans = spans

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        meter = _open.current.get() or self._spans.meter_of(event.span_id) or _open.here()
        if meter is not None:
            meter.saw(event)


@contextmanager
def _listening() -> Iterator[None]:
    """Have the open meters told of the events of the block."""
    root, spans = get_dispatcher(), _Spans()
    events = _Events(spans)
    root.add_event_handler(events)
    root.add_span_handler(spans)
    try:
        yield
    finally:
        root.event_handlers.remove(events)
        root.span_handlers.remove(spans)


_open = OpenMeters("rag_accel_llama_index_coverage", LlamaIndexMeter, parts_of, around=_listening)
coverage: Final = _open.coverage
