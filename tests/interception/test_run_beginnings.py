"""Runs of one program share its records; what goes wrong there concerns no call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rag_accel.engine_api import EngineRequest, GenerationInput, Message
from rag_accel.leaves.early_answers import AskedPrompt, EarlyAnswer
from rag_accel.leaves.early_beginnings import RunBeginnings
from rag_accel.leaves.recorded_prompts import RecordedPrompts
from rag_accel.leaves.retrieved_documents import RetrievedDocuments
from rag_accel.scheduler.messages import (
    EarlyArrived,
    EngineName,
    NodeCancelled,
    NodeKey,
    RequestId,
)

ENGINE = EngineName("llm")
ANSWER = NodeKey(RequestId(1), "answer")
RULES = "Answer from the passages alone, and say so where they tell nothing of it. " * 4


class Driver:
    """What takes early work, in place of a scheduler."""

    def __init__(self) -> None:
        self.taken: list[tuple[Message, ...]] = []
        self.told: list[Any] = []

    def may_be_alone(self, request: RequestId) -> bool:
        return True

    def post(self, event: Any) -> None:
        self.told.append(event)

    def submit_early(self, event: EarlyArrived, client: Any) -> None:
        self.taken.append(client.messages)


def prompt(number: int) -> list[Message]:
    return [Message("user", f"{RULES}{question(number)} Passages: {number * 7}")]


def question(number: int) -> str:
    return f"When did number {number} open?"


def run_of(recorded: RecordedPrompts, driver: Driver, given: Any, counted: Any = None) -> Any:
    def count(what: str, stage: str, amount: int = 1) -> None:
        (counted if counted is not None else {}).setdefault(what, []).append(amount)

    found = RetrievedDocuments()
    named = (driver, "", RequestId(1), "program", recorded, given, found, count)
    return RunBeginnings(*named)  # type: ignore[arg-type]


def asked(*messages: Message) -> AskedPrompt:
    return AskedPrompt(ENGINE, messages, GenerationInput(messages), None)


def call(recorded: RecordedPrompts, driver: Driver, number: int, counted: Any = None) -> None:
    """Search, prompt, answer, as a program does."""
    run = run_of(recorded, driver, lambda: {"question": question(number)}, counted)
    run.leaf_begins()
    run.leaf_begins()
    noted = run.note_prompt(asked(*prompt(number)))
    assert noted is not None
    noted.take(f"In {number}.")
    run.close()


def test_a_beginning_is_handed_over_once() -> None:
    recorded, driver = RecordedPrompts(), Driver()
    for number in range(3):
        call(recorded, driver, number)
    ((message,),) = driver.taken
    assert message.content.startswith(RULES + question(2))


def test_runs_of_many_threads_share_records(caplog: pytest.LogCaptureFixture) -> None:
    recorded, driver = RecordedPrompts(), Driver()

    def edit(number: int) -> None:
        # Prompts change now and then, so that records are dropped and made again meanwhile.
        run = run_of(recorded, driver, lambda: {"question": question(number)})
        run.leaf_begins()
        text = f"Version {number // 10}. {RULES}{question(number)}"
        assert run.note_prompt(asked(Message("user", text))) is not None
        run.close()

    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(16) as pool:
        list(pool.map(edit, range(400)))
    assert caplog.records == []


def test_values_that_cannot_be_read_reach_no_call(caplog: pytest.LogCaptureFixture) -> None:
    recorded, driver = RecordedPrompts(), Driver()
    for number in range(2):
        call(recorded, driver, number)

    def given() -> Mapping[str, str]:
        raise RuntimeError("broken")

    run = run_of(recorded, driver, given)
    run.leaf_begins()
    assert run.note_prompt(asked(*prompt(2))) is None
    run.close()
    assert len(caplog.records) == 2
    assert driver.taken == []


def graded(number: int, place: int) -> AskedPrompt:
    """Return a call whose prompt the question and the place decide."""
    messages = (Message("user", f"Part {place} of: {question(number)}"),)
    return AskedPrompt(ENGINE, messages, GenerationInput(messages), GenerationInput)


def run_of_parts(
    recorded: RecordedPrompts, driver: Driver, number: int, counted: Any = None
) -> Any:
    return run_of(recorded, driver, lambda: {"question": question(number)}, counted)


def shown(driver: Driver) -> RecordedPrompts:
    """Return the records of a program that makes three calls."""
    recorded = RecordedPrompts()
    for number in range(2):
        run = run_of_parts(recorded, driver, number)
        for place in range(3):
            assert run.note_prompt(graded(number, place)) is not None
        run.close()
    return recorded


def unbuilt(engine: EngineName, payload: GenerationInput) -> EarlyAnswer:
    """Return an answer that no engine is given."""

    def build(node: NodeKey) -> EngineRequest:
        raise AssertionError("nothing is computed here")

    return EarlyAnswer(payload, build, ANSWER, engine)


def test_calls_that_threads_have_made_meanwhile_are_not_begun() -> None:
    driver = Driver()
    run = run_of_parts(shown(driver), driver, 2)
    first, second = (run.note_prompt(graded(2, place)) for place in range(2))
    begun: list[GenerationInput] = []

    def begin(engine: EngineName, payload: GenerationInput) -> EarlyAnswer:
        begun.append(payload)
        return unbuilt(engine, payload)

    first.begin_next(begin)
    second.begin_next(begin)
    assert begun == [graded(2, 2).payload]


def test_an_answer_that_comes_after_its_call_is_dropped_and_no_miss() -> None:
    driver, counted = Driver(), dict[str, list[int]]()
    run = run_of_parts(shown(driver), driver, 2, counted)
    first = run.note_prompt(graded(2, 0))

    def begin(engine: EngineName, payload: GenerationInput) -> EarlyAnswer:
        assert run.note_prompt(graded(2, 1)) is not None  # another thread is faster
        answer = unbuilt(engine, payload)
        answer.has_begun = True
        return answer

    first.begin_next(begin)
    assert driver.told == [NodeCancelled(ANSWER)] * 2
    run.close()
    assert counted == {}


def test_documents_that_cannot_be_read_reach_no_call() -> None:
    def read(result: Any) -> Any:
        raise RuntimeError("broken")

    recorded, driver = RecordedPrompts(), Driver()
    run = run_of_parts(recorded, driver, 0)
    noted = run.note_prompt(graded(0, 0))
    run.retrieved.add(read, [])
    noted.take("an answer")
    assert run.note_prompt(graded(0, 1)) is None
