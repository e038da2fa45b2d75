"""Errors, cancellations and context variables of calls that have left their loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import (
    AT_ONCE,
    ENGINES,
    PATIENCE_S,
    QUESTION,
    WatchedLLM,
    ask,
    knowing_fakes,
    llm_of,
    parts_of,
)
from li_programs import (
    run_in_loop,
)

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.accelerator import current_request
from rag_accel.system.classes import full_name

_SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


pytestmark = pytest.mark.usefixtures("shared_models")
accelerator = knowing_fakes


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), TimeoutError("no")])
@pytest.mark.parametrize("name", ["hyde", "multi-step", "flare"])
@pytest.mark.cross_product(keep=4)
def test_an_error_of_one_of_sixteen_is_its_own(
    name: str, error: Exception, accelerator: Accelerator
) -> None:
    def fail_at_seven(prompt: str) -> None:
        if f"{QUESTION} 7" in prompt:
            raise type(error)(*error.args)

    make = ENGINES[name]
    plain = ask(make(parts_of(fail_at_seven, llm_of(make))), AT_ONCE)
    parts = parts_of(fail_at_seven, llm_of(make))
    found = ask(accelerate(make(parts), accelerator=accelerator), AT_ONCE)
    assert [(type(one), str(one)) for one in found] == [(type(one), str(one)) for one in plain]
    assert isinstance(found[7], Exception)
    assert type(found[7].__cause__) is type(plain[7].__cause__)
    assert soon_idle(accelerator)


def test_a_query_that_is_cancelled_leaves_nothing_behind(accelerator: Accelerator) -> None:
    waiting, may_fail, problems = threading.Event(), threading.Event(), list[Any]()

    def wait(prompt: str) -> None:
        if f"{QUESTION} 1" in prompt:
            waiting.set()
            may_fail.wait(PATIENCE_S)
            raise ValueError("nobody waits for this")

    async def ask() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        tasks = [asyncio.create_task(engine.aquery(f"{QUESTION} {one}")) for one in range(3)]
        await asyncio.to_thread(waiting.wait, PATIENCE_S)
        tasks[1].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        may_fail.set()
        async with asyncio.timeout(PATIENCE_S):
            while not accelerator.is_idle:  # noqa: ASYNC110 - told by no event
                await asyncio.sleep(0)
        return found

    engine = accelerate(ENGINES["hyde"](parts_of(wait)), accelerator=accelerator)
    found = run_in_loop(ask())
    assert [type(one).__name__ for one in found] == ["Response", "CancelledError", "Response"]
    assert problems == []
    assert soon_idle(accelerator)


def test_context_variables_go_with_the_call_and_come_back(accelerator: Accelerator) -> None:
    def note(prompt: str) -> None:
        noted.append(_SEEN.get())
        _SEEN.set("model")

    async def ask() -> str:
        _SEEN.set("caller")
        await engine.aquery(QUESTION)
        return _SEEN.get()

    noted = list[str]()
    engine = accelerate(ENGINES["hyde"](parts_of(note)), accelerator=accelerator)
    assert run_in_loop(ask()) == "model"
    assert noted == ["caller", "model"]


def test_a_moved_call_is_part_of_its_querys_request(accelerator: Accelerator) -> None:
    lock, found = threading.Lock(), dict[str, set[Any]]()

    def note(prompt: str) -> None:
        question = next(one for one in questions if one in prompt)
        with lock:
            found.setdefault(question, set()).add(current_request.get())

    questions = [f"{QUESTION} {place}" for place in range(4)]
    engine = accelerate(ENGINES["hyde"](parts_of(note)), accelerator=accelerator)
    ask(engine, 4)
    assert [len(found[one]) for one in questions] == [1] * 4
    assert len(set[Any]().union(*found.values())) == 4
    assert None not in set[Any]().union(*found.values())


def test_an_internal_error_leaves_the_call_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: Any) -> Any:
        raise RuntimeError("no thread")

    plain = str(ask(ENGINES["hyde"](parts_of()))[0])
    with Accelerator(thread_safe_classes=(full_name(WatchedLLM),)) as accelerator:
        monkeypatch.setattr(accelerator.calls, "start", refuse)
        engine = accelerate(ENGINES["hyde"](parts_of()), accelerator=accelerator)
        assert str(ask(engine)[0]) == plain
        assert list(accelerator.bypassed.values()) == [1]
