"""The prompts of a program's runs, begun before they are asked for.

Their beginnings are prefilled while the rest is not known (``scheduler/early.py``), and those that
are known as a whole are answered (``early_answers.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    PromptUse,
    WorkId,
)
from rag_accel.leaves.early_answers import MOST_AHEAD, AskedPrompt, EarlyAnswer
from rag_accel.leaves.recorded_prompts import (
    MOST_PLACES,
    RecordedPrompts,
    Values,
    is_beginning,
)
from rag_accel.leaves.retrieved_documents import RetrievedDocuments
from rag_accel.passes.split_prefill import CHARACTERS_PER_TOKEN, LEAST_TOKENS
from rag_accel.scheduler.driver import Driver, Result
from rag_accel.scheduler.messages import (
    EarlyArrived,
    EarlyAsked,
    EngineName,
    NodeCancelled,
    NodeKey,
    Outcome,
    RequestId,
)

LEAST_CHARACTERS: Final = LEAST_TOKENS * CHARACTERS_PER_TOKEN
"""A shorter beginning costs more than it brings."""
MOST_DOCUMENTS: Final = 32
"""Texts that a run's searches have found of which prompts are known to be made."""

BeginAnswer: TypeAlias = "Callable[[EngineName, GenerationInput], EarlyAnswer]"

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
        retrieved: the documents that the run has found.
        count: told what became of early work.
    """

    driver: Driver
    namespace: str
    request: RequestId
    program: str
    recorded: RecordedPrompts
    given: Callable[[], Values]
    retrieved: RetrievedDocuments
    count: Count
    _values: dict[str, str | tuple[Message, ...]] | None = None
    #: results of searches whose texts are among the values, and these texts
    _num_results: int = 0
    _documents: set[str] = field(default_factory=set[str])
    _num_prompts: int = 0
    #: the place that was tried last, and how much was known then
    _tried: tuple[int, int] = (-1, 0)
    _begun: dict[int, EarlyBeginning] = field(default_factory=dict[int, EarlyBeginning])
    _num_begun: int = 0
    #: by place; those that were asked for are gone
    _answers: dict[int, EarlyAnswer] = field(default_factory=dict[int, EarlyAnswer])
    #: the first place that no answer was begun for
    _num_answers: int = 0

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
            self.log_failure()

    def _due(self, place: int) -> tuple[EarlyArrived, EarlyBeginning] | None:
        """Return a beginning to prefill, if more of it is known than before."""
        known = self._known()
        if self._tried == (place, len(known)):
            return None
        self._tried = (place, len(known))
        engine, record = self.recorded.engines.get(place), self.recorded.at(place)
        if engine is None or record is None:
            return None
        if place and place in self.recorded.remakes and record.whole(known):
            return None  # the calls before it begin its answer
        messages = record.beginning(known)
        before = self._begun.get(place)
        least = LEAST_CHARACTERS + (num_characters(before.messages) if before else 0)
        if num_characters(messages) < least:
            return None
        self._begun[place] = client = EarlyBeginning(messages, self.namespace)
        self._num_begun += 1
        node = NodeKey(self.request, f"early{self._num_begun}")
        return EarlyArrived(node, engine), client

    def note_prompt(self, asked: AskedPrompt) -> NotedPrompt | None:
        """Record a prompt that is about to be computed; None where that fails."""
        try:
            with self.recorded.lock:
                return self._noted(asked)
        except Exception:
            self.log_failure()
            return None

    def _noted(self, asked: AskedPrompt) -> NotedPrompt:
        place, self._num_prompts = self._num_prompts, self._num_prompts + 1
        record, begun = self.recorded.at(place), self._begun.pop(place, None)
        answer = self._answer_to(asked, place)
        if record is not None:
            if begun is not None:
                record.judge(begun.settle(asked.messages, self.program, self.count))
            record.learn(asked.messages, self._known())
            if asked.has_beginnings:
                self.recorded.engines[place] = asked.engine
            if asked.remake is not None:
                self.recorded.remakes[place] = asked.engine, asked.remake
            else:
                self.recorded.remakes.pop(place, None)
        return NotedPrompt(self, place, answer)

    def _answer_to(self, asked: AskedPrompt, place: int) -> EarlyAnswer | None:
        """Return what was begun early for this very call; what was begun in its place is dropped.

        Calls that threads make at the same time may come in another order.
        """
        for at, answer in self._answers.items():
            if answer.payload == asked.payload:
                del self._answers[at]
                if asked.remake is None:  # such as that it is streamed now
                    self.driver.post(NodeCancelled(answer.key))
                    return None
                if (record := self.recorded.at(at)) is not None:
                    record.judge(True)
                return answer
        if (missed := self._answers.pop(place, None)) is not None:
            self._drop(place, missed)
        return None

    def _drop(self, place: int, answer: EarlyAnswer) -> None:
        self.driver.post(NodeCancelled(answer.key))
        if (record := self.recorded.at(place)) is not None:
            record.judge(False)
        if answer.has_begun:
            self.count("early_misses", self.program)
            self.count("early_wasted_tokens", self.program, answer.num_tokens)

    def answers_due(self, place: int) -> list[tuple[int, EngineName, GenerationInput]]:
        """Return the calls behind a place that are known as a whole and were not begun yet.

        What comes behind one that is not known may hang on its answer.
        """
        due: list[tuple[int, EngineName, GenerationInput]] = []
        if not self.recorded.remakes or not self.driver.may_be_alone(self.request):
            return due
        with self.recorded.lock:
            # Other threads may have asked for some of them, or begun them, meanwhile.
            first = max(self._num_prompts, self._num_answers)
            for later in range(first, place + 1 + MOST_AHEAD):
                record, known = self.recorded.places.get(later), self.recorded.remakes.get(later)
                if record is None or known is None:
                    break
                messages = record.whole(self._known())
                payload = known[1](messages) if messages else None
                if payload is None:
                    break
                due.append((later, known[0], payload))
                self._num_answers = later + 1
        return due

    def keep_answer(self, place: int, answer: EarlyAnswer) -> None:
        """Keep what was begun early until its call is made; end it if that was made meanwhile."""
        with self.recorded.lock:
            is_late = place < self._num_prompts
            if not is_late:
                self._answers[place] = answer
        if is_late:
            self.driver.post(NodeCancelled(answer.key))

    def note_answer(self, place: int, text: str) -> None:
        """Keep what a prompt was answered with, which later ones may hold."""
        with self.recorded.lock:
            if self._values is not None and place < MOST_PLACES:
                self._values[f"answer {place}"] = text

    def close(self) -> None:
        """Count what no prompt went on with; the run is over."""
        with self.recorded.lock:
            begun, self._begun = self._begun, {}
            for place, client in begun.items():
                is_hit = client.settle((), self.program, self.count)
                if (record := self.recorded.at(place)) is not None:
                    record.judge(is_hit)
            answers, self._answers = self._answers, {}
            for place, answer in answers.items():
                self._drop(place, answer)

    def log_failure(self) -> None:
        """Log an error that concerns no call."""
        _log.exception("a prompt of %s could not be recorded or begun early", self.program)

    def _known(self) -> dict[str, str | tuple[Message, ...]]:
        if self._values is None:
            self._values = dict(self.given())
        for number, texts in self.retrieved.later(self._num_results):
            self._num_results = number + 1
            for place, text in enumerate(texts[:MOST_DOCUMENTS]):
                if len(self._documents) < MOST_DOCUMENTS and text not in self._documents:
                    self._documents.add(text)
                    self._values[f"document {number}.{place}"] = text
        return self._values


@dataclass(frozen=True, slots=True)
class NotedPrompt:
    """A prompt of a run that was recorded and is computed now.

    Args:
        run: whose it is.
        place: among the prompts of the run.
        answer: what was begun early for this call.
    """

    run: RunBeginnings
    place: int
    answer: EarlyAnswer | None

    def begin_next(self, begin: BeginAnswer) -> None:
        """Begin the answers of the calls that follow; this call has been handed over."""
        try:
            for place, engine, payload in self.run.answers_due(self.place):
                self.run.keep_answer(place, begin(engine, payload))
        except Exception:  # nobody waits for them
            self.run.log_failure()

    def ask(self) -> EarlyAnswer | None:
        """Return what was begun early for this call, which is waited for from now on."""
        if self.answer is not None:
            self.run.driver.post(EarlyAsked(self.answer.key, self.answer.engine))
        return self.answer

    def use(self, answer: EarlyAnswer) -> Any:
        """Return the value of an early answer that has ended; None if it has not ended well."""
        if answer.found is not None:
            self.run.count("early_hits", self.run.program)
        return answer.found

    def take(self, text: str) -> None:
        """Keep the answer, which later prompts may hold."""
        self.run.note_answer(self.place, text)
