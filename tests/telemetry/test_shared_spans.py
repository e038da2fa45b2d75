"""Work that callers share runs in nobody's context, in a root span that links to theirs."""

from __future__ import annotations

import subprocess
import sys
from contextvars import ContextVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_accel.telemetry.shared_spans import CallersSpan, callers_span, run_apart

user: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Give what has the spans of a provider that is the process's during the test."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return made


def test_no_callers_context_is_seen() -> None:
    user.set("anna")
    assert run_apart(user.get, "work", [None]) == "nobody"


def test_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        run_apart(lambda: 1 // 0, "work", [])


def test_the_span_is_a_root_that_links_to_each_caller(exporter: InMemorySpanExporter) -> None:
    callers = list[CallersSpan | None]()
    for name in ("anna", "bert"):
        with trace.get_tracer("tests").start_as_current_span(name):
            callers.append(callers_span())
    with trace.get_tracer("tests").start_as_current_span("engine"):
        run_apart(lambda: None, "work", [*callers, None])
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert found["work"].parent is None
    linked = [link.context.span_id for link in found["work"].links]
    assert linked == [found[name].context.span_id for name in ("anna", "bert")]


def test_without_a_callers_span_there_is_none(exporter: InMemorySpanExporter) -> None:
    assert callers_span() is None
    run_apart(lambda: None, "work", [None])
    assert exporter.get_finished_spans() == ()


def test_a_tracer_that_raises_does_not_matter() -> None:
    caller = CallersSpan(opentelemetry=object(), ddtrace=object(), sentry="x")
    assert run_apart(lambda: 3, "work", [caller]) == 3


def test_no_tracer_is_imported() -> None:
    program = (
        "import sys\n"
        "from rag_accel.telemetry.shared_spans import callers_span, run_apart\n"
        "run_apart(callers_span, 'work', [callers_span()])\n"
        "print(sorted({'ddtrace', 'opentelemetry', 'sentry_sdk'} & sys.modules.keys()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
