"""The beginnings of prompts, prefilled before they are asked for (``scheduler/early.py``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    PromptUse,
    WorkId,
)
from rag_accel.leaves.recorded_prompts import RecordedPrompts, Values, is_beginning
from rag_accel.passes.split_prefill import CHARACTERS_PER_TOKEN, LEAST_TOKENS
from rag_accel.scheduler.driver import Driver, Result
from rag_accel.scheduler.messages import EarlyArrived, EngineName, NodeKey, Outcome, RequestId

LEAST_CHARACTERS: Final = LEAST_TOKENS * CHARACTERS_PER_TOKEN
"""A shorter beginning costs more than it brings."""

_log = logging.getLogger("rag_accel.leaves")


class Count(Protocol):
    """A counter of what happens to stages and programs, such as ``retries``."""

    def __call__(self, what: str, stage: str, amount: int = 1) -> None:
        """Count something that happened to a stage or a program."""
        ...


@dataclass(slots=True)
class EarlyBeginning:
    """The driver's client of one beginning, for which nobody waits.

    Args:
        messages: of the last one a beginning.
        namespace: tenant.
        has_begun: whether the engine has it, or had it.
        use: what was computed, once all of it is.
    """

    messages: tuple[Message, ...]
    namespace: str
    has_begun: bool = False
    use: PromptUse | None = None

    def settle(self, whole: Sequence[Message], stage: str, count: Count) -> bool:
        """Count whether a prompt goes on with it, and tell.

        Counted are ``early_hits``, ``early_misses``, and ``early_wasted_tokens``: the tokens that
        were computed for nothing.
        """
        is_hit = is_beginning(self.messages, whole)
        if self.has_begun:
            count("early_hits" if is_hit else "early_misses", stage)
            if not is_hit and self.use is not None:
                count("early_wasted_tokens", stage, self.use.computed)
        return is_hit

    def request(self, node: NodeKey) -> EngineRequest:
        self.has_begun = True
        return EngineRequest(
            id=WorkId(f"{node.request}/{node.node}"),
            request_id=str(node.request),
            kind=PrimitiveKind.PARTIAL_PREFILLING,
            payload=GenerationInput(self.messages),
            namespace=self.namespace,
        )

    def granted(self, node: NodeKey) -> None:
        raise AssertionError("early work runs on owned engines")

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Ignore increments."""

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Learn what was computed; the beginning stays where the engine keeps it."""
        if outcome == "failed":
            self.has_begun = False  # nothing can be found of it
        elif result is not None and isinstance(result.value, PromptUse):
            self.use = result.value


def num_characters(messages: Sequence[Message]) -> int:
    """Return how long messages are."""
    return sum(len(message.content) for message in messages)


@dataclass(slots=True, eq=False)
class RunBeginnings:
    """The prompts of one run of a program, recorded and begun early. Thread-safe.

    An error of its own is logged, and concerns neither the run nor its calls.

    Args:
        driver, namespace: of the accelerator.
        request, program: of the run.
        recorded: what runs of the program have shown.
        given: returns what the run was given; asked once, when it is needed.
        count: told what became of beginnings.
    """

    driver: Driver
    namespace: str
    request: RequestId
    program: str
    recorded: RecordedPrompts
    given: Callable[[], Values]
    count: Count
    _values: dict[str, str | tuple[Message, ...]] | None = None
    _num_prompts: int = 0
    #: the place that was tried last, and how much was known then
    _tried: tuple[int, int] = (-1, 0)
    _begun: dict[int, EarlyBeginning] = field(default_factory=dict[int, EarlyBeginning])
    _num_begun: int = 0

    def leaf_begins(self) -> None:
        """Begin the run's next prompt as far as it is known; a leaf is about to begin."""
        if not self.recorded.engines:
            return
        try:
            with self.recorded.lock:
                due = self._due(self._num_prompts)
            if due is not None:
                self.driver.submit_early(*due)
        except Exception:  # nobody waits for it, so nobody is to fail with it
            self._log_failure()

    def _due(self, place: int) -> tuple[EarlyArrived, EarlyBeginning] | None:
        """Return a beginning to prefill, if more of it is known than before."""
        known = self._known()
        if self._tried == (place, len(known)):
            return None
        self._tried = (place, len(known))
        engine, record = self.recorded.engines.get(place), self.recorded.at(place)
        if engine is None or record is None:
            return None
        messages = record.beginning(known)
        before = self._begun.get(place)
        least = LEAST_CHARACTERS + (num_characters(before.messages) if before else 0)
        if num_characters(messages) < least:
            return None
        self._begun[place] = client = EarlyBeginning(messages, self.namespace)
        self._num_begun += 1
        node = NodeKey(self.request, f"early{self._num_begun}")
        return EarlyArrived(node, engine), client

    def note_prompt(
        self, messages: Sequence[Message], engine: EngineName
    ) -> Callable[[str], None] | None:
        """Record a prompt that is about to be computed; return what takes its answer."""
        try:
            return partial(self.note_answer, self._recorded_at(messages, engine))
        except Exception:
            self._log_failure()
            return None

    def _recorded_at(self, messages: Sequence[Message], engine: EngineName) -> int:
        with self.recorded.lock:
            place, self._num_prompts = self._num_prompts, self._num_prompts + 1
            record, begun = self.recorded.at(place), self._begun.pop(place, None)
            if record is not None:
                if begun is not None:
                    record.judge(begun.settle(messages, self.program, self.count))
                record.learn(messages, self._known())
                self.recorded.engines[place] = engine
        return place

    def note_answer(self, place: int, text: str) -> None:
        """Keep what a prompt was answered with, which later ones may hold."""
        with self.recorded.lock:
            self._known()[f"answer {place}"] = text

    def close(self) -> None:
        """Count what no prompt went on with; the run is over."""
        with self.recorded.lock:
            begun, self._begun = self._begun, {}
            for place, client in begun.items():
                is_hit = client.settle((), self.program, self.count)
                if (record := self.recorded.at(place)) is not None:
                    record.judge(is_hit)

    def _log_failure(self) -> None:
        _log.exception("a prompt of %s could not be recorded or begun early", self.program)

    def _known(self) -> dict[str, str | tuple[Message, ...]]:
        if self._values is None:
            self._values = dict(self.given())
        return self._values
