"""A request to the server is part of its caller's trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serving_kit import client_of

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.serving.app import ServingApp
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants

trace = pytest.importorskip("opentelemetry.sdk.trace")
api = pytest.importorskip("opentelemetry.trace")
TRACE, SPAN = 0xA3DE2BA5AD1614CA0B3B41CE42717D19, 0x00F067AA0BA902B7
HEADERS = {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01"}


class Ended(trace.SpanProcessor):  # type: ignore[misc, name-defined]
    """The spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span)


def ask_traced(monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]) -> Any:
    """Return the span of a served graph's run."""
    ended, provider = Ended(), trace.TracerProvider()
    provider.add_span_processor(ended)
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    graph = RAGraph(["question"]).add_function("answer", str, inputs="question")
    graph.add_edge(START, "answer").add_edge("answer", END)

    async def main(accelerator: Accelerator) -> int:
        tenants = ServedTenants(ServingTarget("bot", graph, accelerator))
        async with client_of(ServingApp(tenants, ServingOptions())) as client:
            body = {"question": "why"}
            return (await client.post("/invoke", json=body, headers=headers)).status_code

    with Accelerator(telemetry="spans") as accelerator:
        assert asyncio.run(main(accelerator)) == 200
    return next(span for span in ended.spans if span.name == "invoke_workflow RAGraph")


def test_a_request_is_a_child_of_its_callers_span(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = ask_traced(monkeypatch, HEADERS).parent
    assert (parent.trace_id, parent.span_id) == (TRACE, SPAN)


def test_a_header_that_is_none_begins_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_traced(monkeypatch, {"traceparent": "00-no-trace"}).parent is None
