"""What goes wrong in a composite's calls side by side goes wrong as one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from lc_meeting import THREAD_SAFE, found, queries
from lc_runs import Runs
from lc_waiting import wait_until

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

QUESTION = "question one"
VAR: ContextVar[str] = ContextVar("var", default="unset")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator to which the fakes are thread-safe."""
    with Accelerator(strict=True, thread_safe_classes=THREAD_SAFE) as made:
        yield made
        assert made.bypassed == {}


def test_the_first_error_in_order_leaves_even_if_another_was_earlier(
    accelerator: Accelerator,
) -> None:
    errors = {"0": ValueError("zero"), "1": KeyError("one")}
    later = threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert later.wait(10.0)
        later.set()
        raise errors[query]

    runs = Runs()
    fast = accelerate(RunnableLambda(str) | queries(2, find), accelerator=accelerator)
    with pytest.raises(ValueError, match="zero") as raised:
        fast.invoke(QUESTION, {"callbacks": [runs]})
    assert raised.value is errors["0"]
    assert runs.open() == []


def test_calls_under_way_are_over_before_the_error_leaves(accelerator: Accelerator) -> None:
    failed, over = threading.Event(), threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert failed.wait(10.0)
            raise ValueError("zero")
        failed.set()
        VAR.set(query)
        wait_until(lambda: any(told[0] == "on_retriever_error" for told in runs.events()), "0")
        over.set()
        return found(query)

    runs = Runs()
    fast = accelerate(queries(2, find), accelerator=accelerator)
    VAR.set("callers")
    with pytest.raises(ValueError, match="zero"):
        fast.invoke(QUESTION, {"callbacks": [runs]})
    assert over.is_set()
    assert VAR.get() == "callers"
    assert runs.open() == []


def test_nothing_begins_after_an_error() -> None:
    with Accelerator(strict=True, call_threads=1, thread_safe_classes=THREAD_SAFE) as accelerator:
        release = threading.Event()
        accelerator.calls.submit(lambda: release.wait(10.0))
        asked: list[str] = []

        def find(query: str) -> list[Document]:
            asked.append(query)
            VAR.set(query)
            if query == "2":
                raise ValueError("two")
            return found(query)

        fast = accelerate(queries(6, find), accelerator=accelerator)
        with pytest.raises(ValueError, match="two"):
            fast.invoke(QUESTION)
        release.set()
        assert asked == ["0", "1", "2"]
        assert VAR.get() == "2"


def test_an_interrupt_waits_for_no_call(accelerator: Accelerator) -> None:
    began, release = threading.Event(), threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert began.wait(10.0)
            raise KeyboardInterrupt
        began.set()
        assert release.wait(10.0)
        return found(query)

    retriever = queries(2, find)
    fast = accelerate(retriever, accelerator=accelerator)
    with pytest.raises(KeyboardInterrupt):
        fast.invoke(QUESTION)
    assert retriever.retriever.journal.under_way == 1
    release.set()
    wait_until(lambda: retriever.retriever.journal.under_way == 0, "the other call")


@given(st.lists(st.sampled_from(["found", "nothing", "fails"]), max_size=12), st.integers(0, 9))
def test_whatever_calls_come_to_it_is_what_comes_of_them_one_by_one(
    outcomes: list[str], bound: int
) -> None:
    errors = [ValueError(place) for place in range(len(outcomes))]

    def find(query: str) -> list[Document]:
        outcome = outcomes[int(query)]
        if outcome == "fails":
            raise errors[int(query)]
        return found(query) if outcome == "found" else []

    def come(program: Any) -> Any:
        try:
            return program.invoke(QUESTION, {"max_concurrency": bound} if bound else {})
        except ValueError as error:
            return error

    program = RunnableLambda(str) | queries(len(outcomes), find)
    with Accelerator(strict=True, thread_safe_classes=THREAD_SAFE) as accelerator:
        fast, expected = come(accelerate(program, accelerator=accelerator)), come(program)
    assert fast is expected if isinstance(expected, ValueError) else fast == expected
