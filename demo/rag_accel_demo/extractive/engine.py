"""The extractive reader as a language model: an owned engine for DECODING, and one function.

Prompts follow the convention of ``parse_prompt``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel_demo.extractive.prompt import parse_messages
from rag_accel_demo.extractive.reader import find_answer


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion and the pieces it can be streamed in; joined they are its text."""

    output: GenerationOutput
    pieces: tuple[str, ...]


def complete(payload: GenerationInput, max_sentences: int = 3) -> Completion:
    """Answer a chat as a language model would, one piece a sentence.

    ``stop`` and ``max_tokens`` cut the text as they do elsewhere; sampling options change nothing.
    A token is a white-space separated word.
    """
    question, passages = parse_messages(payload.messages)
    sentences = find_answer(question, passages, max_sentences)
    text, reason = _cut(" ".join(sentences), payload)
    output = GenerationOutput(
        text=text,
        prompt_tokens=sum(len(message.content.split()) for message in payload.messages),
        completion_tokens=len(text.split()),
        finish_reason=reason,
    )
    return Completion(output, _pieces(text, sentences))


class ExtractiveEngine(OwnEngine):
    """An engine for DECODING work (``GenerationInput``) around the extractive reader.

    Final value: ``GenerationOutput``. Where ``stream`` is set, each sentence comes as a ``partial``
    first. One piece of work is answered at a time, and new work joins between steps. Work ends in
    ``error`` where its kind, its payload or a handle is not for this engine; other work is not
    touched.

    Args:
        max_sentences: most sentences of an answer.
        clock: measures ``StepBudget.time_s``.
    """

    def __init__(self, *, max_sentences: int = 3, clock: Clock | None = None) -> None:
        self._max_sentences = max_sentences
        self._clock = clock or MonotonicClock()
        self._queue: deque[EngineRequest] = deque()
        profile = EngineProfile(
            kinds=frozenset({PrimitiveKind.DECODING}),
            latency=LatencyModel(per_item_s=0.001),
            stepped=True,
            pure=True,
            capabilities=frozenset({Capability.STREAM}),
        )
        super().__init__(profile, "extractive engine")

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Queue work."""
        self._require_open()
        self._queue.extend(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Answer queued work in its order, at least one piece, until ``budget.time_s`` is over."""
        started = self._clock.now()
        outputs: list[EngineOutput] = []
        while self._queue:
            outputs.extend(self._answered(self._queue.popleft()))
            if budget.time_s is not None and self._clock.now() - started >= budget.time_s:
                break
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget queued work; unknown ids are ignored."""
        gone = frozenset(ids)
        self._queue = deque(request for request in self._queue if request.id not in gone)

    def close(self) -> None:
        self._queue.clear()
        self._closed = True

    def _answered(self, request: EngineRequest) -> list[EngineOutput]:
        try:
            payload = self._checked_payload(request, GenerationInput)
            if request.handle is not None:
                valid = "none: this engine gives out no handles"
                raise self._refusal("unknown handle", request.handle, valid)
            done = complete(payload, self._max_sentences)
        except Exception as error:  # whatever is wrong with one item stays with it
            return [EngineOutput(request.id, "error", error=error)]
        pieces = done.pieces if request.stream else ()
        parts = [EngineOutput(request.id, "partial", piece) for piece in pieces]
        return [*parts, EngineOutput(request.id, "final", done.output)]


def _cut(text: str, payload: GenerationInput) -> tuple[str, str]:
    """Cut before the first stop string and after the last allowed word."""
    found = [at for at in (text.find(stop) for stop in payload.stop if stop) if at >= 0]
    if found:
        text = text[: min(found)]
    if payload.max_tokens is not None and len(text.split()) > payload.max_tokens:
        return " ".join(text.split()[: payload.max_tokens]), "length"
    return text, "stop"


def _pieces(text: str, sentences: Sequence[str]) -> tuple[str, ...]:
    pieces: list[str] = []
    for number, sentence in enumerate(sentences):
        size = len(sentence) + (1 if number else 0)
        if text:
            pieces.append(text[:size])
        text = text[size:]
    return tuple(pieces)
