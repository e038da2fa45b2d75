"""Spans of work that several callers share, in the tracers that a program has imported.

Such work runs in a context of its own, so that it carries no caller's user, tags or baggage. Its
span is a root that links to the span of each caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallersSpan:
    """The span in which a caller asked, by tracer.

    Args:
        opentelemetry: its span context.
        ddtrace: its trace context.
        sentry: its ``sentry-trace`` header.
    """

    opentelemetry: Any = None
    ddtrace: Any = None
    sentry: str | None = None


def callers_span() -> CallersSpan | None:
    """Return the span that is current here; None without one. Imports no tracer."""
    found = CallersSpan(_opentelemetry(), _ddtrace(), _sentry())
    return None if found == _NONE else found


_NONE = CallersSpan()


def _opentelemetry() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def _ddtrace() -> Any:
    ddtrace = sys.modules.get("ddtrace")
    tracer = getattr(ddtrace, "tracer", None)
    return None if tracer is None else tracer.current_trace_context()


def _sentry() -> str | None:
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None or sentry.get_current_span() is None:
        return None
    return sentry.get_traceparent()


def run_apart(work: Callable[[], T], name: str, callers: Sequence[CallersSpan | None]) -> T:
    """Run work that callers share in a context of its own, in a root span that links to theirs.

    Args:
        work: runs once; its errors pass through.
        name: of the span.
        callers: their spans.
    """

    def traced() -> T:
        with _spans(name, [caller for caller in callers if caller is not None]):
            return work()

    return Context().run(traced)


@contextmanager
def _spans(name: str, callers: Sequence[CallersSpan]) -> Generator[None]:
    """Open a span in each tracer that has a caller's; a tracer that raises has none."""
    with ExitStack() as opened:
        for begin in (_begin_opentelemetry, _begin_ddtrace, _begin_sentry):
            with suppress(Exception):
                begin(opened, name, callers)
        yield


def _begin_opentelemetry(opened: ExitStack, name: str, callers: Sequence[CallersSpan]) -> None:
    contexts = [one.opentelemetry for one in callers if one.opentelemetry is not None]
    if contexts:
        trace: Any = sys.modules["opentelemetry.trace"]
        links = [trace.Link(context) for context in contexts]
        tracer = trace.get_tracer("rag_accel")
        opened.enter_context(tracer.start_as_current_span(name, links=links))


def _begin_ddtrace(opened: ExitStack, name: str, callers: Sequence[CallersSpan]) -> None:
    contexts = [one.ddtrace for one in callers if one.ddtrace is not None]
    if contexts:
        span = opened.enter_context(sys.modules["ddtrace"].tracer.trace(name))
        for context in contexts:
            span.link_span(context)


def _begin_sentry(opened: ExitStack, name: str, callers: Sequence[CallersSpan]) -> None:
    parents = [one.sentry for one in callers if one.sentry is not None]
    if parents:
        sentry: Any = sys.modules["sentry_sdk"]
        opened.enter_context(sentry.isolation_scope())
        transaction = sentry.start_transaction(op="function", name=name)
        opened.enter_context(transaction)
        transaction.set_data("rag_accel.callers", parents)
