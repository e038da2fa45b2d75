"""What goes wrong in a translated program goes wrong, and is told, as in the plain one."""

from __future__ import annotations

import asyncio
import threading
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from lc_fakes import AsyncChat, AsyncRetriever
from lc_programs import QUESTION, joined, retrieval_chain
from lc_recording import plain
from lc_translating import Runs, config_with, outcome, translated, until

from rag_accel import Accelerator, BusyError, DeadlineError

INPUT = {"input": "question one"}
WAYS = ("invoke", "ainvoke")


def _raising(error: BaseException) -> Runnable[Any, Any]:
    def fail(given: Any) -> Any:
        raise error

    return RunnableLambda(fail)


def _slow() -> Runnable[Any, Any]:
    return itemgetter("input") | AsyncRetriever() | joined | RunnableLambda(len)


async def _ended(runs: Runs) -> None:
    """Wait for what runs on after an error: branches beside the one that failed."""
    await until(lambda: not runs.open())


class Picky(Runs):
    """Raise in one callback of the runs with one name."""

    raise_error = True

    def __init__(self, event: str, name: str) -> None:
        super().__init__()
        self.event = event
        self.name = name
        self.picked: set[Any] = set()

    def tell(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run, name = kwargs["run_id"], kwargs.get("name")
        super().tell(event, args, kwargs)
        if name == self.name:
            self.picked.add(run)
        if event == f"on_chain_{self.event}" and run in self.picked:
            raise KeyError(f"{self.name} {event}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", ["start", "end", "error"])
@pytest.mark.parametrize(
    "name", ["my run", "inner", "RunnableParallel<a,b>", "RunnableAssign<z>", "RunnableParallel<z>"]
)
async def test_a_handler_that_raises_has_the_effect_it_has_in_the_plain_program(
    name: str, event: str, way: str, accelerator: Accelerator
) -> None:
    def make() -> Runnable[Any, Any]:
        inner = (RunnableLambda(itemgetter("input")) | len).with_config(run_name="inner")
        both = RunnableParallel(a=inner, b=itemgetter("input")).assign(z=itemgetter("a"))
        ends = _raising(ValueError("no")) if event == "error" else RunnablePassthrough()
        return both | RunnablePassthrough.assign(z=RunnableParallel(a=ends, b=len)) | len

    of_bare, of_fast = Picky(event, name), Picky(event, name)
    expected = await outcome(getattr(make(), way), INPUT, config_with(of_bare))
    fast = translated(make(), accelerator)
    found = await outcome(getattr(fast, way), INPUT, config_with(of_fast))
    assert plain(found) == plain(expected)
    for _ in range(500):  # until what goes on beside the error has been told, on a busy machine
        await asyncio.sleep(0.01)
        if of_fast.forest() == of_bare.forest():
            break
    assert of_fast.forest() == of_bare.forest()


@pytest.mark.parametrize("name", ["linear", "parallel", "deep"])
async def test_cancelling_ends_every_run_as_in_the_plain_program(
    name: str, accelerator: Accelerator
) -> None:
    gate = asyncio.Event()
    waiting = QUESTION | AsyncChat(gate=gate) | StrOutputParser()
    inner = RunnableParallel(a=waiting, b=RunnableParallel(c=waiting, d=waiting))
    programs = {"linear": waiting, "parallel": inner, "deep": inner.assign(e=len) | len}

    async def events(program: Any) -> list[str]:
        runs = Runs()
        task = asyncio.create_task(program.ainvoke(INPUT, config_with(runs)))
        model_calls = 3 if name != "linear" else 1
        started = "on_chat_model_start"
        await until(lambda: [event for event, _ in runs.order].count(started) == model_calls)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # A chat model does not tell of the end of a call that was cancelled.
        await until(lambda: len(runs.open()) <= model_calls)
        return runs.forest()

    assert await events(translated(programs[name], accelerator)) == await events(programs[name])


def test_an_interrupt_in_a_branch_leaves_as_in_the_plain_program(
    accelerator: Accelerator,
) -> None:
    program = RunnableParallel(bad=_raising(KeyboardInterrupt()), good=_slow()) | len

    def events(program: Any) -> list[str]:
        runs = Runs()
        with pytest.raises(KeyboardInterrupt):
            program.invoke(INPUT, config_with(runs))
        return runs.forest()

    assert events(translated(program, accelerator)) == events(program)


async def test_an_error_is_raised_while_other_branches_still_run(accelerator: Accelerator) -> None:
    gate = asyncio.Event()
    runs = Runs()
    slow = QUESTION | AsyncChat(gate=gate) | StrOutputParser()
    program = RunnableParallel(slow=slow, bad=_raising(ValueError("no"))) | len
    with pytest.raises(ValueError, match="no"):
        await translated(program, accelerator).ainvoke(INPUT, config_with(runs))
    assert runs.open()
    gate.set()
    await _ended(runs)
    assert "on_chain_error" not in [e for e, run in runs.order if run == runs.order[-1][1]]


def test_a_blocking_error_waits_for_the_branches_beside_it(accelerator: Accelerator) -> None:
    started, ended = threading.Event(), threading.Event()

    def slow(given: Any) -> Any:
        started.set()
        ended.set()

    def bad(given: Any) -> Any:
        assert started.wait(10.0)
        raise ValueError("no")

    program = RunnableParallel(bad=RunnableLambda(bad), slow=RunnableLambda(slow))
    with pytest.raises(ValueError, match="no"):
        translated(program, accelerator).invoke(INPUT)
    assert ended.is_set()


@pytest.mark.parametrize("way", WAYS)
async def test_a_closed_accelerator_runs_the_program_plainly(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    accelerator = Accelerator()
    fast = translated(retrieval_chain() | RunnableParallel(a=len, b=len), accelerator)
    accelerator.close()
    of_bare, of_fast = Runs(), Runs()
    bare = retrieval_chain() | RunnableParallel(a=len, b=len)
    expected = await outcome(getattr(bare, way), INPUT, config_with(of_bare))
    assert await outcome(getattr(fast, way), INPUT, config_with(of_fast)) == expected
    assert of_fast.forest() == of_bare.forest()
    assert "runs without the scheduler" in caplog.text


@pytest.mark.parametrize("way", WAYS)
async def test_a_strict_accelerator_raises_what_is_its_own(way: str) -> None:
    accelerator = Accelerator(strict=True)
    fast = translated(RunnableParallel(a=len, b=len), accelerator)
    accelerator.close()
    kind, error = await outcome(getattr(fast, way), INPUT)
    assert kind == "raised"
    assert type(error).__name__ == "ClosedError"


@pytest.mark.parametrize("way", WAYS)
async def test_a_deadline_ends_every_run(way: str) -> None:
    runs = Runs()
    with Accelerator(strict=True, deadline_s=0.0) as accelerator:
        fast = translated(RunnableParallel(a=len, b=len) | len, accelerator)
        kind, error = await outcome(getattr(fast, way), INPUT, config_with(runs))
    assert (kind, type(error)) == ("raised", DeadlineError)
    assert runs.open() == []


def test_a_full_accelerator_refuses_if_asked_to() -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(given: Any) -> Any:
        inside.set()
        assert leave.wait(10.0)

    with Accelerator(strict=True, max_requests=1, on_full="raise") as accelerator:
        waiting = translated(RunnableParallel(a=RunnableLambda(wait), b=len), accelerator)
        other = threading.Thread(target=waiting.invoke, args=(INPUT,))
        other.start()
        assert inside.wait(10.0)
        with pytest.raises(BusyError):
            translated(RunnableParallel(a=len, b=len), accelerator).invoke(INPUT)
        leave.set()
        other.join()
