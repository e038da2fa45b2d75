"""What goes wrong in the scheduler never becomes the program's problem, unless strict."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lc_fakes import AsyncChat, StreamingChat, SyncChat
from lc_programs import QUESTION, model_chain, retrieval_chain
from lc_waiting import wait_until

from langchain_rag_accel import RagAccelEmbeddings, RagAccelVectorStore, accelerate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator, ClosedError
from rag_accel.errors import EngineLostError, SchedulingError
from rag_accel.scheduler import transitions
from rag_accel.scheduler.driver import handling
from rag_accel.scheduler.messages import LeafArrived, StepEnded, Tick

INPUT = {"input": "question one"}


def _broken(accelerator: Accelerator, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    for name in ("begin", "permit", "compute", "compute_all", "acompute"):
        monkeypatch.setattr(accelerator.leaves, name, fail)


@pytest.fixture
def fail_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[type, Accelerator], None]:
    """Let the scheduler's core raise at an accelerator's next event of a kind."""
    caplog.set_level(logging.CRITICAL, "rag_accel.scheduler")

    def arm(kind: type, accelerator: Accelerator) -> None:
        armed = [kind]
        failing = accelerator._driver._handler.state  # others may live on in their threads

        def handle(state: Any, event: Any, now: float, *, more: bool = False) -> Any:
            if state is failing and isinstance(event, tuple(armed)):
                armed.clear()
                raise ZeroDivisionError("a bug")
            return transitions.handle(state, event, now, more=more)

        monkeypatch.setattr(handling, "handle", handle)

    return arm


OURS = [SchedulingError("broken"), ClosedError("closed"), EngineLostError("lost"), KeyError("bug")]


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
async def test_an_error_of_ours_lets_the_leaf_run_plainly(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Accelerator() as accelerator:
        _broken(accelerator, error, monkeypatch)
        fast, bare = accelerate(retrieval_chain(), accelerator=accelerator), retrieval_chain()
        with caplog.at_level(logging.WARNING, "rag_accel"), coverage() as meter:
            assert fast.invoke(INPUT) == bare.invoke(INPUT)
            assert await fast.ainvoke(INPUT) == bare.invoke(INPUT)
            assert list(fast.stream(INPUT))[-1] == list(bare.stream(INPUT))[-1]
        assert sum(row.scheduled for row in meter.rows()) == 0
        assert sum(accelerator.bypassed.values()) == 6
        assert {reason for _, reason in accelerator.bypassed} == {type(error).__name__}
        assert "runs without the scheduler" in caplog.text


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
async def test_an_error_of_ours_is_raised_when_strict(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Accelerator(strict=True) as accelerator:
        _broken(accelerator, error, monkeypatch)
        fast = accelerate(model_chain(), accelerator=accelerator)
        with pytest.raises(type(error)):
            fast.invoke(INPUT)
        with pytest.raises(type(error)):
            await fast.ainvoke(INPUT)
        assert accelerator.bypassed == {}
        error.__traceback__ = None


async def test_closing_lets_calls_in_flight_end() -> None:
    gate = asyncio.Event()
    accelerator = Accelerator()
    model = AsyncChat(gate=gate)
    fast = accelerate(QUESTION | model, accelerator=accelerator)
    tasks = [asyncio.create_task(fast.ainvoke({"input": str(number)})) for number in range(8)]
    async with asyncio.timeout(10.0):
        while model.journal.under_way < 8:  # noqa: ASYNC110 - other loops' events would not do
            await asyncio.sleep(0.001)
    accelerator.close()
    gate.set()
    found = await asyncio.gather(*tasks)
    assert [message.content for message in found] == [
        (QUESTION | SyncChat()).invoke({"input": str(number)}).content for number in range(8)
    ]


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_calls_that_wait_for_a_permit_run_plainly_where_the_scheduler_ends(
    how: str, fail_once: Callable[[type, Accelerator], None]
) -> None:
    with Accelerator(max_requests=1) as accelerator:
        started, release = threading.Event(), threading.Event()

        class Slow(SyncChat):
            def check(self, given: Any) -> None:
                started.set()
                release.wait(60.0)

        slow = accelerate(QUESTION | Slow(), accelerator=accelerator)
        quick = accelerate(QUESTION | StreamingChat(), accelerator=accelerator)
        answers: list[Any] = []
        calls = [
            threading.Thread(target=lambda chain=chain: answers.append(chain.invoke(INPUT)))
            for chain in (slow, quick)
        ]
        calls[0].start()
        assert started.wait(10.0)
        calls[1].start()
        wait_until(lambda: accelerator._driver.ask(lambda: _pending(accelerator)) == 1, "a waiter")
        if how == "closed":
            accelerator.close()
        else:
            fail_once(Tick, accelerator)
            accelerator._driver.post(Tick())
        calls[1].join(10.0)
        release.set()
        calls[0].join(10.0)
        assert len(answers) == 2
        assert sum(accelerator.bypassed.values()) == 1


def _pending(accelerator: Accelerator) -> int:
    """Return how many leaves wait: a program may be there before its first leaf is."""
    pending = accelerator._driver._handler.state.pending
    return sum(len(run.nodes) for run in pending.values())


def test_work_on_an_owned_engine_survives_closing(embeddings: RagAccelEmbeddings) -> None:
    accelerator = Accelerator()
    expected = embeddings.embed_documents(["one", "two"])
    fast = embeddings.scheduled_by(accelerator)
    accelerator.close()
    assert np.allclose(fast.embed_documents(["one", "two"]), expected, atol=1e-6)
    store = RagAccelVectorStore(fast, accelerator=accelerator)
    store.add_texts(["one", "two"])
    assert [found.page_content for found in store.similarity_search("one", k=1)] == ["one"]
    assert accelerator.bypassed


def test_closing_in_the_middle_of_a_step_lets_its_callers_go_on_plainly() -> None:
    inside, release = threading.Event(), threading.Event()

    class Model:
        """Be a model whose first call, the engine's, does not come back."""

        def __init__(self) -> None:
            self.calls = 0

        def encode(self, texts: list[str], **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                inside.set()
                release.wait(10.0)
            return np.ones((len(texts), 2), dtype=np.float32)

    accelerator = Accelerator(shutdown_s=0.01)
    fast = RagAccelEmbeddings(Model(), accelerator=accelerator)
    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.append(fast.embed_query("x")))
    caller.start()
    assert inside.wait(10.0)
    accelerator.close()
    caller.join(10.0)
    assert found == [[1.0, 1.0]]
    assert accelerator.bypassed == {("embedding", "ClosedError"): 1}
    release.set()


@pytest.mark.parametrize("kind", [LeafArrived, StepEnded])
def test_a_scheduler_that_fails_lets_the_call_run_plainly_and_the_next_one_is_scheduled(
    kind: type, embeddings: RagAccelEmbeddings, fail_once: Callable[[type, Accelerator], None]
) -> None:
    accelerator = Accelerator()
    fast = embeddings.scheduled_by(accelerator)
    expected = fast.embed_query("one")
    fail_once(kind, accelerator)
    assert np.allclose(fast.embed_query("one"), expected, atol=1e-6)
    assert accelerator.bypassed == {("embedding", "SchedulingError"): 1}
    with coverage() as meter:
        assert np.allclose(fast.embed_query("one"), expected, atol=1e-6)
    assert sum(row.scheduled for row in meter.rows()) == 1
    assert sum(accelerator.bypassed.values()) == 1
    accelerator.close()


def test_a_scheduler_that_fails_is_an_error_when_strict(
    embeddings: RagAccelEmbeddings, fail_once: Callable[[type, Accelerator], None]
) -> None:
    with Accelerator(strict=True) as accelerator:
        fast = embeddings.scheduled_by(accelerator)
        fail_once(LeafArrived, accelerator)
        with pytest.raises(SchedulingError, match="a bug"):
            fast.embed_query("one")
        assert accelerator.bypassed == {}
