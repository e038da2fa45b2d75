"""A program whose users share an embeddings server: ``python traced_program.py TRACER``.

It prints JSON: for each framework the calls that the server received, whether the vectors are
right, what ``explain`` says and the spans; and the answers of a model on a server. The tracer is
on before anything else is imported, as tracers require.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

USERS = [f"user {number}" for number in range(64)]

Span = dict[str, Any]
#: returns a block in which a user asks, and the spans that have ended
Tracing = tuple[Callable[[str], AbstractContextManager[Any]], Callable[[], list[Span]]]


def _span(trace: Any, name: str, *texts: Any, links: int = 0) -> Span:
    """Return a span: its trace, its name, all its texts, and how many spans it links to."""
    return {"trace": trace, "name": name, "said": json.dumps(texts, default=str), "links": links}


def opentelemetry() -> Tracing:
    """Have OpenTelemetry's SDK record, for the instrumentors below."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def spans() -> list[Span]:
        return [
            _span(s.context.trace_id, s.name, dict(s.attributes or {}), links=len(s.links))
            for s in exporter.get_finished_spans()
        ]

    return trace.get_tracer("users").start_as_current_span, spans


def instrumented(module: str, instrumentor: str) -> Tracing:
    tracing = opentelemetry()
    getattr(importlib.import_module(module), instrumentor)().instrument()
    return tracing


def langfuse() -> Tracing:
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}
    os.environ |= {"LANGFUSE_HOST": "http://127.0.0.1:9", "LANGFUSE_TIMEOUT": "1"}
    tracing = opentelemetry()
    import langfuse.openai  # noqa: F401  # pyright: ignore[reportMissingImports]

    return tracing


def sentry() -> Tracing:
    """Have Sentry send nothing, and keep transactions instead."""
    import sentry_sdk

    events = list[Any]()
    sentry_sdk.init(
        dsn="http://k@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        send_default_pii=True,
        before_send_transaction=lambda event, hint: events.append(event),
    )

    @contextmanager
    def ask(user: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope, sentry_sdk.start_transaction(name=user):
            scope.set_user({"id": user})
            yield

    def spans() -> list[Span]:
        found = list[Span]()
        for event in events:
            own = event["contexts"]["trace"]
            links = len(own.get("data", {}).get("rag_accel.callers", []))
            texts = (event.get("user"), event["contexts"])
            found.append(_span(own["trace_id"], event["transaction"], *texts, links=links))
            found += [_span(own["trace_id"], span["op"], span) for span in event["spans"]]
        return found

    return ask, spans


def ddtrace() -> Tracing:
    """Have Datadog's tracer keep its traces."""
    os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = "false"
    os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"
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
            _span(s.trace_id, s.name, s.resource, dict(s.get_tags()), links=len(s._get_links()))
            for s in kept
        ]

    return tracer.trace, spans


TRACERS: dict[str, Callable[[], Tracing]] = {
    "openinference": partial(
        instrumented, "openinference.instrumentation.openai", "OpenAIInstrumentor"
    ),
    "httpx": partial(
        instrumented, "opentelemetry.instrumentation.httpx", "HTTPXClientInstrumentor"
    ),
    "langfuse": langfuse,
    "sentry": sentry,
    "ddtrace": ddtrace,
}


async def main(tracer: str) -> dict[str, Any]:
    # One loop for all: connections of an openai client belong to the loop that opened them.
    ask_as, spans = TRACERS[tracer]()
    from chat_server import ChatServer
    from embeddings_server import EmbeddingsServer
    from langchain_openai import OpenAIEmbeddings
    from llama_index.embeddings.openai import OpenAIEmbedding

    import langchain_rag_accel
    import llama_index_rag_accel
    from rag_accel import Accelerator
    from rag_accel.engines import RemoteLLM

    key: Any = "k"

    def langchain(url: str) -> Any:
        return OpenAIEmbeddings(
            model="m", base_url=url, api_key=key, check_embedding_ctx_length=False
        )

    def llama_index(url: str) -> Any:
        return OpenAIEmbedding(model_name="m", api_base=url, api_key=key)

    # All live to the end: when a client is collected while another opens connections, httpx can
    # leave an answer to the other unread, with and without acceleration.
    living = list[Any]()

    async def share(integration: Any, make: Callable[[str], Any], method: str) -> dict[str, Any]:
        with EmbeddingsServer() as server, Accelerator(strict=True) as accelerator:
            fast = integration.accelerate(make(server.base_url), accelerator=accelerator)
            living.append(fast)
            embed = getattr(fast, method)
            await embed("warm")
            server.calls.clear()
            before = len(spans())

            async def ask(user: str) -> list[float]:
                with ask_as(user):
                    return await embed(f"{user} asks")

            found = await asyncio.gather(*map(ask, USERS))
            calls = [list(texts) for texts in server.calls]
            expected = [server.vector(f"{user} asks") for user in USERS]
            said = integration.explain(fast)
        equal = found == expected
        return {"calls": calls, "equal": equal, "explain": said, "spans": spans()[before:]}

    async def answers(url: str) -> list[str]:
        model = langchain_rag_accel.ChatRagAccel(model=RemoteLLM([url], "m"), max_tokens=3)
        answer = str((await model.ainvoke("hi")).content)
        return [answer, "".join([str(piece.content) async for piece in model.astream("hi")])]

    with ChatServer() as chat:
        return {
            "langchain": await share(langchain_rag_accel, langchain, "aembed_query"),
            "llama_index": await share(llama_index_rag_accel, llama_index, "aget_query_embedding"),
            "RemoteLLM": await answers(chat.base_url),
            "RemoteLLM calls": chat.num_calls,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
