"""The beginnings of prompts, prefilled before they are asked for (``scheduler/early.py``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
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
        """Count whether a prompt goes on with it, and tell; ``early_hits``, ``early_misses``,
        and the tokens that were computed for nothing, ``early_wasted_tokens``."""
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
    _lock: Lock = field(default_factory=Lock)
    _values: dict[str, str | tuple[Message, ...]] | None = None
    _num_prompts: int = 0
    #: where the last prompts were computed, which the next ones may be as well
    _engine: EngineName | None = None
    _begun: dict[int, EarlyBeginning] = field(default_factory=dict[int, EarlyBeginning])
    _num_begun: int = 0

    def leaf_begins(self) -> None:
        """Begin the run's next prompt as far as it is known; a leaf is about to begin."""
        if not self.recorded.engines:
            return
        try:
            with self._lock:
                self._begin(self._num_prompts)
        except Exception:  # nobody waits for it, so nobody is to fail with it
            _log.exception("a prompt of %s could not be begun early", self.program)

    def _begin(self, place: int) -> None:
        engine, record = self.recorded.engines.get(place), self.recorded.at(place)
        if engine is None or record is None:
            return
        messages = record.beginning(self._known())
        before = self._begun.get(place)
        least = LEAST_CHARACTERS + (num_characters(before.messages) if before else 0)
        if num_characters(messages) < least:
            return
        self._begun[place] = client = EarlyBeginning(messages, self.namespace)
        self._num_begun += 1
        node = NodeKey(self.request, f"early{self._num_begun}")
        self.driver.submit_early(EarlyArrived(node, engine), client)

    def note_prompt(self, messages: Sequence[Message], engine: EngineName) -> int:
        """Record a prompt that is about to be computed; return its place."""
        with self._lock:
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
        with self._lock:
            self._known()[f"answer {place}"] = text

    def close(self) -> None:
        """Count what no prompt went on with; the run is over."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for place, client in begun.items():
            is_hit = client.settle((), self.program, self.count)
            if (record := self.recorded.at(place)) is not None:
                record.judge(is_hit)

    def _known(self) -> dict[str, str | tuple[Message, ...]]:
        if self._values is None:
            self._values = dict(self.given())
        return self._values


NOTHING_GIVEN: Mapping[str, str] = {}
