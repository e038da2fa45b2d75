"""A program whose users ask for embeddings under a tracer: ``python traced_program.py TRACER``.

It prints, as JSON, what the server was asked, what ``explain`` says of sharing, and the spans.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

USERS = [f"user {number}" for number in range(64)]

#: as a span, or a transaction of Sentry's, is told: its trace, the user in whose name it is, texts
Span = dict[str, Any]
#: returns a block in which a user asks, and the spans by the end
Tracing = tuple[Callable[[str], AbstractContextManager[Any]], Callable[[], list[Span]]]


def plain() -> Tracing:
    return lambda user: nullcontext(), list


def opentelemetry() -> Tracing:
    """Have OpenTelemetry's SDK record, for the instrumentors below."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("users")

    def spans() -> list[Span]:
        return [
            {
                "trace": span.context.trace_id,
                "name": span.name,
                "said": json.dumps(dict(span.attributes or {}), default=str),
                "links": len(span.links),
            }
            for span in exporter.get_finished_spans()
        ]

    return tracer.start_as_current_span, spans


def openinference() -> Tracing:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    tracing = opentelemetry()
    OpenAIInstrumentor().instrument()
    return tracing


def httpx() -> Tracing:
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

    tracing = opentelemetry()
    HTTPXClientInstrumentor().instrument()
    return tracing


def langfuse() -> Tracing:
    import os

    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}
    os.environ |= {"LANGFUSE_HOST": "http://127.0.0.1:9", "LANGFUSE_TIMEOUT": "1"}
    tracing = opentelemetry()
    import langfuse.openai  # noqa: F401  # pyright: ignore[reportMissingImports]

    return tracing


def sentry() -> Tracing:
    """Have Sentry send nothing, and keep transactions instead."""
    import sentry_sdk

    sent = list[Any]()
    sentry_sdk.init(
        dsn="http://k@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        send_default_pii=True,
        before_send_transaction=lambda event, hint: sent.append(event),
    )

    class ask:  # noqa: N801 - used as a function
        def __init__(self, user: str) -> None:
            self._user = user

        def __enter__(self) -> None:
            self._scope = sentry_sdk.isolation_scope()
            self._scope.__enter__().set_user({"id": self._user})
            self._transaction = sentry_sdk.start_transaction(name=self._user)
            self._transaction.__enter__()

        def __exit__(self, *raised: Any) -> None:
            self._transaction.__exit__(*raised)
            self._scope.__exit__(*raised)

    def spans() -> list[Span]:
        return [
            {
                "trace": event["contexts"]["trace"]["trace_id"],
                "name": event["transaction"],
                "said": json.dumps(
                    [event.get("user"), event["spans"], event["contexts"]], default=str
                ),
                "links": len(
                    event["contexts"]["trace"].get("data", {}).get("rag_accel.callers", [])
                ),
            }
            for event in sent
        ]

    return ask, spans


def ddtrace() -> Tracing:
    """Have Datadog's tracer keep its traces."""
    from ddtrace import patch  # pyright: ignore[reportMissingImports]
    from ddtrace.trace import TraceFilter, tracer  # pyright: ignore[reportMissingImports]

    kept = list[Any]()

    class Keep(TraceFilter):  # type: ignore[misc]
        def process_trace(self, trace: list[Any]) -> None:
            kept.extend(trace)

    patch(openai=True, httpx=True)
    tracer.configure(trace_processors=[Keep()])

    def spans() -> list[Span]:
        return [
            {
                "trace": span.trace_id,
                "name": span.name,
                "said": json.dumps([span.resource, dict(span.get_tags())], default=str),
                "links": len(span._get_links()),
            }
            for span in kept
        ]

    return tracer.trace, spans


TRACERS: dict[str, Callable[[], Tracing]] = {
    "none": plain,
    "openinference": openinference,
    "httpx": httpx,
    "langfuse": langfuse,
    "sentry": sentry,
    "ddtrace": ddtrace,
}


async def main(tracer: str, settings: dict[str, Any]) -> dict[str, Any]:
    tracing = TRACERS[tracer]()  # as a program switches it on: before it imports what is traced
    from embeddings_server import EmbeddingsServer
    from langchain_openai import OpenAIEmbeddings

    from langchain_rag_accel import accelerate, explain
    from rag_accel import Accelerator

    ask_as, spans = tracing
    with EmbeddingsServer() as server, Accelerator(strict=True) as accelerator:
        plain = OpenAIEmbeddings(
            model="m",
            base_url=server.base_url,
            api_key="k",  # type: ignore[arg-type]
            check_embedding_ctx_length=False,
            **settings,
        )
        fast = accelerate(plain, accelerator=accelerator)
        await fast.aembed_query("warm")
        server.calls.clear()

        async def ask(user: str) -> list[float]:
            with ask_as(user):
                return await fast.aembed_query(f"{user} asks")

        found = await asyncio.gather(*map(ask, USERS))
        calls = [list(texts) for texts in server.calls]
        expected = [server.vector(f"{user} asks") for user in USERS]
        said = explain(fast)
    return {"calls": calls, "equal": found == expected, "explain": said, "spans": spans()}


if __name__ == "__main__":
    settings: dict[str, Any] = {}
    if "headers" in sys.argv:
        settings["default_headers"] = {"X-Team": "a"}
    if "http_client" in sys.argv:
        import httpx2

        settings["http_client"] = httpx2.Client()
        settings["http_async_client"] = httpx2.AsyncClient()
    print(json.dumps(asyncio.run(main(sys.argv[1], settings))))
