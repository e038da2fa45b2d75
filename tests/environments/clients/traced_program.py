"""A program under a tracer: many embed at once and one asks a model, plain and accelerated.

    python traced_program.py TRACER EMBEDDINGS_URL CHAT_URL

It prints, for each arm, the vectors or answers and the spans that the tracer recorded of them.
The tracer is switched on before anything else is imported, as tracers ask for.
"""

# The tracers are in another environment.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

CALLERS = 64


@dataclass(frozen=True, slots=True)
class Tracer:
    """A tracer that sends nothing.

    Attributes:
        spans: returns the names of the spans that have ended.
        traced: traces what runs in it.
    """

    spans: Callable[[], list[str]]
    traced: Callable[[], AbstractContextManager[Any]] = nullcontext


def nothing() -> Tracer:
    return Tracer(list)


def otel_httpx() -> Tracer:
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

    provider, spans = otel()
    HTTPXClientInstrumentor().instrument(tracer_provider=provider)
    return Tracer(spans)


def openinference() -> Tracer:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    provider, spans = otel()
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return Tracer(spans)


def langfuse() -> Tracer:
    from langfuse import Langfuse
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, spans = otel()
    keys = {"public_key": "public", "secret_key": "secret"}
    Langfuse(**keys, tracer_provider=provider, span_exporter=InMemorySpanExporter())
    import langfuse.openai  # noqa: F401 - it replaces methods of openai

    return Tracer(spans)


def otel() -> tuple[Any, Callable[[], list[str]]]:
    """Return a provider of tracers, and what returns the names of its spans."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, lambda: [span.name for span in exporter.get_finished_spans()]


def sentry() -> Tracer:
    import sentry_sdk

    events: list[Any] = []

    class Kept(sentry_sdk.transport.Transport):
        def capture_envelope(self, envelope: Any) -> None:
            events.append(envelope.get_transaction_event())

    sentry_sdk.init(dsn="http://key@localhost/1", traces_sample_rate=1.0, transport=Kept())

    def spans() -> list[str]:
        return [span["op"] for event in events if event for span in event["spans"]]

    return Tracer(spans, lambda: sentry_sdk.start_transaction(name="program"))


def ddtrace_openai() -> Tracer:
    return ddtrace(openai=True)


def ddtrace_httpx() -> Tracer:
    return ddtrace(httpx=True)


def ddtrace(**patched: bool) -> Tracer:
    os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = "false"
    os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"
    import ddtrace
    from ddtrace.trace import TraceFilter, tracer

    names: list[str] = []

    class Kept(TraceFilter):
        def process_trace(self, trace: list[Any]) -> None:
            names.extend(span.name for span in trace)

    tracer.configure(trace_processors=[Kept()])
    ddtrace.patch(**patched)
    return Tracer(lambda: list(names))


TRACERS: dict[str, Callable[[], Tracer]] = {
    made.__name__: made
    for made in (
        *(nothing, otel_httpx, openinference, langfuse),
        *(sentry, ddtrace_openai, ddtrace_httpx),
    )
}


def main(name: str, embeddings_url: str, chat_url: str) -> None:
    tracer = TRACERS[name]()
    # One loop for all: connections of an openai client belong to the loop that opened them.
    print(json.dumps(asyncio.run(outcomes(tracer, embeddings_url, chat_url))))


async def outcomes(tracer: Tracer, embeddings_url: str, chat_url: str) -> dict[str, Any]:
    """Return the results and the spans of each arm; the arm is the model that its calls name."""
    from langchain_openai import OpenAIEmbeddings
    from llama_index.embeddings.openai import OpenAIEmbedding

    import langchain_rag_accel
    import llama_index_rag_accel
    from rag_accel.engines import RemoteLLM

    key: Any = "key"

    def langchain(name: str) -> Any:
        return OpenAIEmbeddings(
            model=name, base_url=embeddings_url, api_key=key, check_embedding_ctx_length=False
        )

    def llama_index(name: str) -> Any:
        return OpenAIEmbedding(model_name=name, api_base=embeddings_url, api_key=key)

    async def embed_at_once(embed: Callable[[str], Any]) -> list[Any]:
        return await asyncio.gather(*(embed(f"question {number}") for number in range(CALLERS)))

    async def ask(model: Any) -> list[Any]:
        answer = await model.ainvoke("hi")
        return [
            answer.content,
            "".join([str(piece.content) async for piece in model.astream("hi")]),
        ]

    # All live to the end: of a client that is collected while another opens connections, httpx can
    # leave an answer to the other unread, with and without acceleration.
    plain = langchain("langchain plain"), llama_index("llama_index plain")
    fast = (
        langchain_rag_accel.accelerate(langchain("langchain fast")),
        llama_index_rag_accel.accelerate(llama_index("llama_index fast")),
    )
    remote = langchain_rag_accel.ChatRagAccel(model=RemoteLLM([chat_url], "m"), max_tokens=3)
    arms = {
        "langchain plain": embed_at_once(plain[0].aembed_query),
        "langchain fast": embed_at_once(fast[0].aembed_query),
        "llama_index plain": embed_at_once(plain[1].aget_query_embedding),
        "llama_index fast": embed_at_once(fast[1].aget_query_embedding),
        "RemoteLLM": ask(remote),
    }
    found = {}
    for arm, work in arms.items():
        before = len(tracer.spans())
        with tracer.traced():
            result = await work
        found[arm] = {"result": result, "spans": tracer.spans()[before:]}
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
