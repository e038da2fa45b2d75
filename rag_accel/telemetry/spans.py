"""The spans of a program's tracer around a request, kept for spans that are made at its end.

Nothing here imports a tracer. Whoever exports spans (``accelerator/span_export.py``) says how the
current span is read.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from rag_accel.telemetry.events import RequestId
from rag_accel.telemetry.span_attributes import attributes_of

#: spans that others made in one request, of which further ones are not looked at
MAX_OTHERS = 1024


class AskedLeaf(NamedTuple):
    """The span in which a leaf was asked for, and attributes of the object that was called."""

    around: Any
    attributes: Mapping[str, Any]


class RequestSpans:
    """The spans in which a request and its leaves were asked for, and those made within it.

    Args:
        request: the scheduler's id of the request.
        name: of its graph or program.
        current: returns the span that is current.
        table: takes this by ``request`` once there is something to make a span of.
        limit_s: its deadline in seconds after its arrival, if it has one.
        headers: returns the headers by which a call of a server joins the trace of a span.
    """

    def __init__(
        self,
        request: RequestId,
        name: str,
        current: Callable[[], Any],
        table: MutableMapping[RequestId, RequestSpans],
        limit_s: float | None = None,
        headers: Callable[[Any], Mapping[str, str] | None] = lambda span: None,
    ) -> None:
        self.request = request
        self.name = name.partition("#")[0]
        self.limit_s = limit_s
        self.around = current()
        self.leaves: dict[str, AskedLeaf] = {}
        #: spans that instrumentors, or the program, began within the request
        self.others: list[Any] = []
        #: attributes of the results of leaves and primitives, by name
        self.results: dict[str, Mapping[str, Any]] = {}
        #: the class of the error that a program ended with
        self.error = ""
        self._headers = headers
        self._last_headers: tuple[Any, Mapping[str, str] | None] = None, None
        self._current = current
        self._table = table

    def begin(self) -> RequestSpans:
        """Have a span made of the request itself."""
        self._table[self.request] = self
        return self

    def leaf(self, name: str, obj: Any = None) -> None:
        """Note the span in which a leaf is asked for.

        Args:
            name: of the leaf.
            obj: whose call it is, if that is known.
        """
        self.leaves[name] = AskedLeaf(self._current(), {} if obj is None else attributes_of(obj))
        self._table.setdefault(self.request, self)

    def headers(self, name: str) -> Mapping[str, str] | None:
        """Return what a call of a server sends along for a leaf or a primitive, if anything.

        The server's spans become children of the span in which that was asked for: the request's
        own are not made yet.
        """
        around = self.leaves[name].around if name in self.leaves else self.around
        known, headers = self._last_headers
        if known is not around:
            headers = self._headers(around)
            self._last_headers = around, headers
        return headers

    def note(self, span: Any) -> None:
        """Note a span that began within the request."""
        if len(self.others) < MAX_OTHERS:
            self.others.append(span)


#: of the graph whose function runs here; programs' are found by their identity
graph_spans: ContextVar[RequestSpans | None] = ContextVar("rag_accel_graph_spans", default=None)


def run_within(spans: RequestSpans, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``call``; the spans that it makes are noted as the request's."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - an object with an async __call__
    ):

        async def acalled(*args: Any, **kwargs: Any) -> Any:
            token = graph_spans.set(spans)
            try:
                return await call(*args, **kwargs)
            finally:
                graph_spans.reset(token)

        return acalled

    @functools.wraps(call, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        token = graph_spans.set(spans)
        try:
            return call(*args, **kwargs)
        finally:
            graph_spans.reset(token)

    return called


#: what calls of servers that are made here send along, unless a tracer has written it
trace_headers: ContextVar[Mapping[str, str] | None] = ContextVar(
    "rag_accel_trace_headers", default=None
)


@contextmanager
def sending_trace(headers: Mapping[str, str] | None) -> Generator[None]:
    """Run a block whose calls of servers send headers along; a tracer's spans join the trace."""
    token = trace_headers.set(headers)
    try:
        with joining_trace(headers):
            yield
    finally:
        trace_headers.reset(token)


@contextmanager
def joining_trace(headers: Mapping[str, str] | None) -> Generator[None]:
    """Run a block in the span that headers name, if any, as OpenTelemetry's propagator reads it.

    A span that is current keeps its place: a tracer of the program's has read the headers.
    """
    trace, token = sys.modules.get("opentelemetry.trace"), None
    with suppress(Exception):  # a propagator of the program's
        if (
            headers
            and trace is not None
            and not trace.get_current_span().get_span_context().is_valid
        ):
            from opentelemetry import context, propagate

            token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        if token is not None:
            from opentelemetry import context

            context.detach(token)
