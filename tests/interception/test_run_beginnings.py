"""Runs of one program share its records; what goes wrong there concerns no call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rag_accel.engine_api import GenerationInput, Message
from rag_accel.leaves.early_answers import AskedPrompt
from rag_accel.leaves.early_beginnings import RunBeginnings
from rag_accel.leaves.recorded_prompts import RecordedPrompts
from rag_accel.leaves.retrieved_documents import RetrievedDocuments
from rag_accel.scheduler.messages import EarlyArrived, EngineName, RequestId

ENGINE = EngineName("llm")
RULES = "Answer from the passages alone, and say so where they tell nothing of it. " * 4


class Driver:
    """What takes early work, in place of a scheduler."""

    def __init__(self) -> None:
        self.taken: list[tuple[Message, ...]] = []

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
