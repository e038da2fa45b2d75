"""One recorded request as spans by OpenTelemetry's conventions for generative AI.

All primitives of one stage with the same operation are one span, as is each intercepted call. A
span has names and numbers only. Which of them are left out is decided by ``are_same``: what an
instrumentor of the program's has made a span of is not told twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api.kinds import KINDS, PrimitiveKind
from rag_accel.profile.recording import (
    LEAF,
    RecordedPrimitive,
    RecordedRequest,
    instance_in,
    kind_in,
)
from rag_accel.telemetry.events import FirstOutput, NodeRetried, TokensUsed, TraceEvent
from rag_accel.telemetry.span_attributes import DIMENSIONS, TOP_K, read_safely

WORKFLOW = "invoke_workflow"
STAGE = "stage"
"""Operation of functions, conditions and folds, for which the conventions have none."""

#: by how much times of two clocks may differ, in nanoseconds
_SLACK_NS = 1_000_000

_OPERATIONS: Mapping[PrimitiveKind, str] = {
    PrimitiveKind.EMBEDDING: "embeddings",
    PrimitiveKind.SEARCHING: "retrieval",
    PrimitiveKind.RERANKING: "rerank",
    PrimitiveKind.EXPANDING: "expand",
    PrimitiveKind.PRUNING: "prune",
    PrimitiveKind.INGESTION: "ingest",
    PrimitiveKind.DECODING: "chat",
    PrimitiveKind.PARTIAL_DECODING: "chat",
    **{kind: "chat" for kind, spec in KINDS.items() if spec.prefills},
}

#: attributes by which spans of instrumentors say what they are, and what their words mean
_KIND_ATTRIBUTES = (
    *("openinference.span.kind", "gen_ai.operation.name", "langfuse.observation.type"),
    *("traceloop.span.kind", "llm.request.type"),
)
_WORDS = {
    **dict.fromkeys(("retriever", "retrieval"), "retrieval"),
    **dict.fromkeys(("embedding", "embeddings"), "embeddings"),
    **dict.fromkeys(("reranker", "rerank"), "rerank"),
    **dict.fromkeys(("llm", "generation", "chat", "completion", "text_completion"), "chat"),
    "generate_content": "chat",
    **dict.fromkeys(("chain", "agent", "workflow", "task"), WORKFLOW),
    **dict.fromkeys(("invoke_agent", WORKFLOW), WORKFLOW),
}


@dataclass(frozen=True, slots=True)
class OtherSpan:
    """A span that something else made within the request or around it.

    Args:
        operation: what an instrumentor says that it is; "" for spans of the program's own.
        start_ns, end_ns: in nanoseconds since 1970; without an end it is under way.
        span: the span itself.
    """

    operation: str
    start_ns: int
    end_ns: int | None
    span: Any

    def has_around(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether it was there all the time."""
        is_open = self.end_ns is None or self.end_ns + _SLACK_NS >= end_ns
        return self.start_ns - _SLACK_NS <= start_ns and is_open

    def lies_within(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether it began and ended in that time."""
        has_ended = self.end_ns is not None and self.end_ns - _SLACK_NS <= end_ns
        return self.start_ns + _SLACK_NS >= start_ns and has_ended


@dataclass(frozen=True, slots=True)
class MadeSpan:
    """A span to be made.

    Args:
        nodes: names of the primitives that it tells of.
        start_s, end_s: on the scheduler's clock, in seconds.
        outcome: how it ended.
    """

    operation: str
    engine: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    outcome: str
    attributes: dict[str, Any]


def operation_said(attributes: Mapping[str, Any] | None) -> str:
    """Return the operation that the attributes of an instrumentor's span name; "" if none."""
    said = ((attributes or {}).get(name) for name in _KIND_ATTRIBUTES)
    word = next((word for word in said if isinstance(word, str)), "")
    return _WORDS.get(word.lower(), "")


def are_same(operation: str, start_ns: int, end_ns: int, others: Iterable[OtherSpan]) -> bool:
    """Tell whether an instrumentor has a span of this operation of a request.

    Its span is one of the same operation around it, or within it: an instrumentor of a framework
    opens one before the call arrives here, one of a client while the call runs.
    """
    return any(
        other.operation == operation
        and (other.has_around(start_ns, end_ns) or other.lies_within(start_ns, end_ns))
        for other in others
    )


def stage_spans(
    request: RecordedRequest,
    events: Iterable[TraceEvent],
    batches: Mapping[str, int],
    owned: Mapping[str, bool],
    results: Mapping[str, Mapping[str, Any]],
) -> list[MadeSpan]:
    """Return the spans of a request's stages and leaves, in the order in which they began.

    Args:
        request: the recorded request.
        events: all of its events.
        batches: of primitives, how many shared their engine's step.
        owned: of engines, whether they are owned.
        results: of primitives, attributes of their results.
    """
    told: dict[str, list[TraceEvent]] = {}
    for event in events:
        if isinstance(event, (FirstOutput, TokensUsed, NodeRetried)):
            told.setdefault(event.node, []).append(event)
    groups: dict[tuple[str, str], list[RecordedPrimitive]] = {}
    for primitive in (*request.primitives, *request.nested):
        kind = kind_in(primitive)
        operation = _OPERATIONS.get(kind, STAGE) if kind is not None else STAGE
        name = primitive.name if primitive.stage == LEAF else instance_in(primitive.name)
        groups.setdefault((name, operation), []).append(primitive)
    made = [
        _stage_span(operation, group, told, batches, owned, results)
        for (_, operation), group in groups.items()
    ]
    return sorted(made, key=lambda span: span.start_s)


def _stage_span(
    operation: str,
    group: Sequence[RecordedPrimitive],
    told: Mapping[str, Sequence[TraceEvent]],
    batches: Mapping[str, int],
    owned: Mapping[str, bool],
    results: Mapping[str, Mapping[str, Any]],
) -> MadeSpan:
    first = min(group, key=lambda primitive: primitive.ready_s)
    last = max(group, key=lambda primitive: primitive.ended_s)
    is_owned = owned.get(last.engine, False)
    if operation == "chat" and is_owned:
        operation = "text_completion"  # an engine here goes on with a prompt
    attributes: dict[str, Any] = {"rag_accel.engine": last.engine, "rag_accel.owned": is_owned}
    if operation != STAGE:
        attributes["gen_ai.operation.name"] = operation
    if first.stage != LEAF:
        attributes["rag_accel.stage"] = first.stage
    attributes["rag_accel.queue_ms"] = 1000 * sum(primitive.queued_s for primitive in group)
    attributes["rag_accel.items"] = max(primitive.size for primitive in group)
    if batch := max((batches.get(primitive.name, 0) for primitive in group), default=0):
        attributes["rag_accel.batch.size"] = batch
    for primitive in group:
        attributes |= results.get(primitive.name, {})
        for event in told.get(primitive.name, ()):
            _add_event(attributes, event, first.ready_s)
    worst = next((p.outcome for p in group if p.outcome not in ("done", None)), "done")
    if worst != "done":
        attributes["error.type"] = worst
    nodes = tuple(primitive.name for primitive in group)
    return MadeSpan(operation, last.engine, nodes, first.ready_s, last.ended_s, worst, attributes)


def _add_event(attributes: dict[str, Any], event: TraceEvent, since_s: float) -> None:
    match event:
        case FirstOutput():
            attributes["gen_ai.response.time_to_first_chunk"] = event.time_s - since_s
        case NodeRetried():
            attributes["rag_accel.retries"] = event.attempt
        case TokensUsed():
            reused = event.from_prefix + event.from_chunks
            attributes |= {
                "gen_ai.usage.input_tokens": event.computed + reused,
                "gen_ai.usage.output_tokens": event.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": reused,
                "rag_accel.kv.prefix_tokens": event.from_prefix,
                "rag_accel.kv.chunk_tokens": event.from_chunks,
                "rag_accel.kv.recomputed_tokens": event.recomputed,
                "rag_accel.kv.approximate_tokens": event.approximate,
            }
        case _:
            pass


_REASONS = ("stop", "length", "tool_calls", "content_filter", "end_turn", "max_tokens", "tool_use")


def result_attributes(kind: PrimitiveKind, payload: Any, value: Any) -> dict[str, Any]:
    """Return the attributes of the span of work or of a call that has ended.

    Args:
        kind: of the work.
        payload: of an owned engine's work, None of another call.
        value: its result, of an engine, a framework or a function.
    """
    found: dict[str, Any] = {}
    with suppress(Exception):  # a value of the program's
        _add_result(found, kind, payload, value)
    return {name: value for name, value in found.items() if value is not None}


def _add_result(found: dict[str, Any], kind: PrimitiveKind, payload: Any, value: Any) -> None:
    if kind is PrimitiveKind.EMBEDDING:
        found[DIMENSIONS] = _width(value)
    elif kind in (PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING):
        found["rag_accel.documents"] = len(value) if isinstance(value, Sequence) else None
        found[TOP_K] = read_safely(payload, "k")
        found["rag_accel.rerank.top_n"] = read_safely(payload, "top_n")
        candidates = read_safely(payload, "documents")
        found["rag_accel.rerank.candidates"] = None if candidates is None else len(candidates)
    elif kind is PrimitiveKind.DECODING or KINDS[kind].prefills:
        found["gen_ai.request.max_tokens"] = read_safely(payload, "max_tokens")
        reason, tokens_in, tokens_out = _generated(value)
        # No text of a server's.
        found["gen_ai.response.finish_reasons"] = [reason] if reason in _REASONS else None
        found["gen_ai.usage.input_tokens"] = tokens_in
        found["gen_ai.usage.output_tokens"] = tokens_out


def _width(value: Any) -> int | None:
    """Return the length of a vector, or of the vectors of a list."""
    shape = read_safely(value, "shape")
    if shape:
        return int(shape[-1])
    first = value[0] if isinstance(value, Sequence) and value else None
    return len(first) if isinstance(first, Sequence) else len(value) if first is not None else None


def _generated(value: Any) -> tuple[Any, Any, Any]:
    """Return the finish reason of a completion and its tokens, of the prompt and generated.

    They are where LangChain has them (``ChatResult``), or in the server's answer
    that LlamaIndex has as ``raw``. Tokens of engines are told apart, see ``TokensUsed``.
    """
    generations = read_safely(value, "generations")
    if isinstance(generations, list) and len(generations) == 1:
        said = read_safely(generations[0], "generation_info") or {}
        value = read_safely(generations[0], "message")
        said = {**(read_safely(value, "response_metadata") or {}), **said}
        usage = read_safely(value, "usage_metadata") or {}
        reason = said.get("finish_reason") or said.get("stop_reason")
        return reason, usage.get("input_tokens"), usage.get("output_tokens")
    raw = read_safely(value, "raw")
    choices, counts = read_safely(raw, "choices"), read_safely(raw, "usage")
    if isinstance(choices, list) and len(choices) == 1:
        reason = read_safely(choices[0], "finish_reason")
        return (
            reason,
            read_safely(counts, "prompt_tokens"),
            read_safely(counts, "completion_tokens"),
        )
    return read_safely(value, "finish_reason"), None, None
