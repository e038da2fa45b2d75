"""Equal calls in flight have one answer, unless it is an error, or nobody could wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rag_accel.engines.http.shared_answers import SharedAnswers


def beside(answers: SharedAnswers, ask: Callable[[], Any], leader: Callable[[], Any]) -> Any:
    """Return what is found while another thread's call of the key is in flight, then end that."""
    began, may_end = threading.Event(), threading.Event()

    def call() -> Any:
        began.set()
        assert may_end.wait(30)
        return leader()

    with ThreadPoolExecutor(1) as threads:
        leading = threads.submit(answers.ask, "key", call, bool)
        assert began.wait(30)
        try:
            return ask()
        finally:
            may_end.set()
            assert leading.exception(30) is None


def test_a_caller_without_time_asks_itself() -> None:
    answers = SharedAnswers()
    found = beside(answers, lambda: answers.ask("key", lambda: "mine", bool, 0.0), lambda: "its")
    assert found == "mine"


async def test_a_caller_on_a_loop_asks_itself() -> None:
    answers = SharedAnswers()
    found = beside(answers, lambda: answers.ask("key", lambda: "mine", bool), lambda: "its")
    assert found == "mine"


def test_a_call_that_interrupts_its_equal_asks_itself() -> None:
    answers = SharedAnswers()
    inner: list[str] = []

    def call() -> str:
        inner.append(answers.ask("key", lambda: "inner", bool))
        return "outer"

    assert answers.ask("key", call, bool) == "outer"
    assert inner == ["inner"]


def test_nothing_is_left_of_a_call_that_was_interrupted_or_cannot_be_read() -> None:
    answers = SharedAnswers()

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answers.ask("key", interrupted, bool)
    assert answers.ask("key", lambda: "answer", lambda answer: bool(answer["no"])) == "answer"  # type: ignore[call-overload]
    assert answers._flights == {}


def test_a_forked_child_waits_for_no_call_of_its_parent() -> None:
    answers = SharedAnswers()

    def ask() -> Any:
        answers.renew()  # as a child does
        return answers.ask("key", lambda: "mine", bool)

    assert beside(answers, ask, lambda: "its") == "mine"
    assert answers._flights == {}
