"""The spans of a program's tracer around a request, kept for spans that are made at its end.

Nothing here imports a tracer. Whoever exports spans (``accelerator/span_export.py``) says how the
current span is read.
"""

from __future__ import annotations

import functools
import inspect
import ntpath
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from rag_accel.telemetry.events import RequestId

#: spans that others made in one request, of which further ones are not looked at
MAX_OTHERS = 1024

_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name", "name_or_path")


class AskedLeaf(NamedTuple):
    """The span in which a leaf was asked for, and the name of its model; "" if unknown."""

    around: Any
    model: str


class RequestSpans:
    """The spans in which a request and its leaves were asked for, and those made within it.

    Args:
        request: the scheduler's id of the request.
        name: of its graph or program.
        current: returns the span that is current.
        table: takes this by ``request`` once there is something to make a span of.
        limit_s: its deadline in seconds after its arrival, if it has one.
    """

    def __init__(
        self,
        request: RequestId,
        name: str,
        current: Callable[[], Any],
        table: MutableMapping[RequestId, RequestSpans],
        limit_s: float | None = None,
    ) -> None:
        self.request = request
        self.name = name.partition("#")[0]
        self.limit_s = limit_s
        self.around = current()
        self.leaves: dict[str, AskedLeaf] = {}
        #: spans that instrumentors, or the program, began within the request
        self.others: list[Any] = []
        #: the class of the error that a program ended with
        self.error = ""
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
        self.leaves[name] = AskedLeaf(self._current(), "" if obj is None else model_of(obj))
        self._table.setdefault(self.request, self)

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


def model_of(obj: Any) -> str:
    """Return the name of the model that an object calls or is; of a folder its last part."""
    for name in _MODEL_NAMES:
        try:
            found = getattr(obj, name, None)
        except Exception:  # a property of the program's
            continue
        if isinstance(found, str) and found not in ("", "unknown"):  # as LlamaIndex says
            # A folder may say whose it is.
            is_path = found.startswith((".", "/", "~")) or found[1:2] == ":"
            return ntpath.basename(found.rstrip("/\\")) if is_path else found
    return ""
