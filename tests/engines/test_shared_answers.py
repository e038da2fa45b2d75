"""Callers who cannot wait for an equal call in flight ask themselves; nothing is left of any."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rag_accel.engines.http.shared_answers import SharedAnswers

Ask = Callable[[SharedAnswers], Awaitable[str]]


def mine() -> str:
    return "mine"


def interrupted() -> str:
    raise KeyboardInterrupt


async def on_loop(answers: SharedAnswers) -> str:
    return answers.ask("key", mine, bool)


async def in_time(answers: SharedAnswers) -> str:
    with ThreadPoolExecutor(1) as threads:  # it runs no loop
        return threads.submit(answers.ask, "key", mine, bool, 0.0).result(30)


async def in_child(answers: SharedAnswers) -> str:
    answers.renew()
    return await in_time(answers)


@pytest.mark.parametrize("ask", [on_loop, in_time, in_child])
async def test_a_caller_who_cannot_wait_asks_itself(ask: Ask) -> None:
    answers, began, may_end = SharedAnswers(), threading.Event(), threading.Event()

    def call() -> str:
        began.set()
        assert may_end.wait(30)
        return "another's"

    with ThreadPoolExecutor(1) as threads:
        leading = threads.submit(answers.ask, "key", call, bool)
        assert began.wait(30)
        found = await ask(answers)
        may_end.set()
        assert (found, leading.result(30)) == ("mine", "another's")
    assert answers._flights == {}


def test_a_call_that_interrupts_its_equal_asks_itself() -> None:
    answers = SharedAnswers()
    found = answers.ask("key", lambda: ["outer", answers.ask("key", mine, bool)], bool)
    assert found == ["outer", "mine"]


def test_nothing_is_left_of_a_call_that_was_interrupted_or_cannot_be_read() -> None:
    answers = SharedAnswers()
    with pytest.raises(KeyboardInterrupt):
        answers.ask("key", interrupted, bool)
    assert answers.ask("key", mine, lambda answer: answer.no) == "mine"  # type: ignore[attr-defined]
    assert answers._flights == {}
