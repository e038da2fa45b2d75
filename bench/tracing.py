"""Tracers as programs switch them on; both stay on until their process ends."""

from __future__ import annotations


def _sentry() -> None:
    import sentry_sdk

    sentry_sdk.init(
        dsn="http://k@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        before_send_transaction=lambda event, hint: None,
    )


def _openinference() -> None:
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    OpenAIInstrumentor().instrument()
    LlamaIndexInstrumentor().instrument()


def switch_on(tracer: str) -> None:
    """Switch Sentry or OpenInference on in this process."""
    {"Sentry": _sentry, "OpenInference": _openinference}[tracer]()
