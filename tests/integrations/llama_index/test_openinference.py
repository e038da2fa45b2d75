"""OpenInference exports the same spans of an accelerated program as of the plain one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from li_more_programs import MORE, OF_EACH_FORM, Program
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator

# Upstream's agents use what is deprecated in its workflows.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("default_model"),
]

PROGRAMS: dict[str, Program] = {
    **OF_EACH_FORM,
    **{name: MORE[name] for name in ("fan-in", "ingestion")},
}

#: the names of a span and of all around it, its own attributes and whether it failed
Exported = tuple[tuple[str, ...], tuple[tuple[str, Any], ...], bool]


@contextmanager
def instrumented() -> Iterator[InMemorySpanExporter]:
    """Export the spans of all that runs in the block to memory."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = LlamaIndexInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield exporter
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


def exported(exporter: InMemorySpanExporter) -> Counter[Exported]:
    """Return what was exported."""
    spans = {one.context.span_id: one for one in exporter.get_finished_spans()}
    return Counter(
        (_path(one, spans), _attributes(one), one.status.is_ok) for one in spans.values()
    )


def _path(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> tuple[str, ...]:
    around = span.parent and spans[span.parent.span_id]
    return (*(_path(around, spans) if around else ()), span.name)


def _attributes(span: ReadableSpan) -> tuple[tuple[str, Any], ...]:
    # Inputs and outputs hold ids that are made anew, and addresses.
    told = ("openinference.span.kind", "llm.model_name", "llm.prompts", "embedding.model_name")
    found = span.attributes or {}
    return tuple((name, str(found[name])) for name in told if name in found)


def plainly(program: Program) -> tuple[Any, Counter[Exported]]:
    """Return what a plain program gives and exports, once it is made."""
    made = program.made()
    with instrumented() as exporter:
        given = program.run(made)
    assert exported(exporter)
    return given, exported(exporter)


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_accelerated_before_exports_the_same(
    program: Program, accelerator: Accelerator
) -> None:
    plain = plainly(program)
    fast = accelerate(program.made(), accelerator=accelerator)
    with instrumented() as exporter:
        given = program.run(fast)
    assert (given, exported(exporter)) == plain


@pytest.mark.parametrize("program", OF_EACH_FORM.values(), ids=OF_EACH_FORM)
def test_an_activated_program_exports_the_same(program: Program, accelerator: Accelerator) -> None:
    plain = plainly(program)
    made = program.made()
    with instrumented() as exporter, activate(accelerator):
        given = program.run(made)
    assert (given, exported(exporter)) == plain
