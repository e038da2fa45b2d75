"""Intercepted calls pass through the scheduler: permits, computed values, shared runs."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import pytest
from accel_harness import PATIENCE_S, Gate, become_idle, opened, settle
from ends_kit import in_thread
from leaf_calls import amake_call, make_call

from rag_accel import Accelerator, RequestCancelledError
from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.testing import FakeAsyncCall, FakeEngine, FakeSyncCall, Faults, vector_of

EMBEDDING, DECODING = PrimitiveKind.EMBEDDING, PrimitiveKind.DECODING


class Model:
    """Be an object that an engine runs."""


def own(acc: Accelerator, engine: FakeEngine) -> Callable[..., Work]:
    """Join an engine and return what makes work for it."""
    name = acc.own(engine, "embedding", lambda: engine)

    def work(*texts: str, share: Any = None) -> Work:
        return Work(name, EMBEDDING, TextBatch(texts), len(texts), share)

    return work


# Permits ----------------------------------------------------------------------------------------


def test_a_call_runs_in_the_callers_thread_and_context() -> None:
    user: ContextVar[str] = ContextVar("user")
    user.set("alice")
    call = FakeSyncCall(context_var=user)
    with opened() as acc:
        engine = acc.borrow("chat", DECODING)
        identity = acc.anonymous()
        assert make_call(acc, identity, engine, DECODING, partial(call, "x")) == "x"
    assert call.calls[0].thread_id == threading.get_ident()
    assert call.calls[0].context_value == "alice"


@contextmanager
def busy_driver(acc: Accelerator) -> Iterator[None]:
    """Keep the scheduler's thread from looking at anything while the block runs."""
    entered, over = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert over.wait(PATIENCE_S)

    asking = threading.Thread(target=lambda: acc._driver.ask(hold))  # pyright: ignore[reportPrivateUsage]
    asking.start()
    assert entered.wait(PATIENCE_S)
    try:
        yield
    finally:
        over.set()
        asking.join()


def test_a_call_of_an_unlimited_engine_does_not_wait_for_the_scheduler() -> None:
    with opened() as acc:
        engine = acc.borrow("chat", DECODING)
        with busy_driver(acc):
            assert make_call(acc, acc.anonymous(), engine, DECODING, lambda: 1) == 1

            async def call() -> int:
                return 2

            coroutine = amake_call(acc, acc.anonymous(), engine, DECODING, call)
            assert asyncio.run(coroutine) == 2
        become_idle(acc)
        assert acc.metrics.snapshot()["engines"]["chat"]["items"] == 2


def test_an_unlimited_engine_is_waited_for_when_requests_fill_half_the_bound() -> None:
    with opened(max_requests=4) as acc:
        engine = acc.borrow("chat", DECODING)
        identities = [acc.open_request("p") for _ in range(2)]
        settle(acc)
        with busy_driver(acc):
            waiting, found = in_thread(
                lambda: make_call(acc, acc.anonymous(), engine, DECODING, lambda: 1)
            )
            waiting.join(0.05)
            assert waiting.is_alive()
        waiting.join(PATIENCE_S)
        assert found == [1]
        for identity in identities:
            acc.close_request(identity)


def test_what_a_call_raises_passes_through_and_the_permit_comes_back() -> None:
    error = LookupError("no")

    def fail() -> None:
        raise error

    with opened() as acc:
        engine = acc.borrow("chat", DECODING, 1)
        for _ in range(3):
            with pytest.raises(LookupError) as caught:
                make_call(acc, acc.anonymous(), engine, DECODING, fail)
            assert caught.value is error


def test_a_task_cancelled_while_it_waits_for_a_permit_gives_up_its_place() -> None:
    async def main() -> None:
        engine = acc.borrow("chat", DECODING, 1)
        with acc.leaves.permit(acc.anonymous(), engine, DECODING):
            waiting = asyncio.ensure_future(
                amake_call(acc, acc.anonymous(), engine, DECODING, FakeAsyncCall())
            )
            await asyncio.sleep(0)
            settle(acc)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        with acc.leaves.permit(acc.anonymous(), engine, DECODING):
            pass

    with opened() as acc:
        asyncio.run(main())


@pytest.mark.parametrize("granted", [False, True])
def test_a_loop_closed_under_a_permit_gives_it_back(granted: bool) -> None:
    async def hold() -> None:
        async with acc.leaves.permit(acc.anonymous(), engine, DECODING):
            await asyncio.Event().wait()

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(hold())
        for _ in range(20):
            loop.run_until_complete(asyncio.sleep(0.001))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    with opened() as acc:
        engine = acc.borrow("chat", DECODING, 1)
        if granted:
            abandon()
        else:
            with acc.leaves.permit(acc.anonymous(), engine, DECODING):
                abandon()
        gc.collect()
        with acc.leaves.permit(acc.anonymous(), engine, DECODING):
            pass
        gc.collect()


# Computed values --------------------------------------------------------------------------------


def test_several_works_of_one_caller_share_a_step() -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate)
    with gate, opened() as acc:
        work = own(acc, engine)
        first, _ = in_thread(lambda: acc.leaves.compute(acc.anonymous(), work("first")))
        gate.wait_until_entered()
        others, found = in_thread(
            lambda: acc.leaves.compute_all(acc.anonymous(), [work(str(n)) for n in range(5)])
        )
        while _live(acc) < 6:
            pass
        gate.open()
        first.join(PATIENCE_S)
        others.join(PATIENCE_S)
        for n, value in enumerate(found[0]):
            np.testing.assert_array_equal(value, [vector_of(str(n))])
    assert [len(batch) for batch in engine.batches] == [1, 5]


def test_works_of_nothing_compute_nothing() -> None:
    with opened() as acc:
        assert acc.leaves.compute_all(acc.anonymous(), []) == []


def test_if_one_of_several_works_fails_its_error_is_raised_and_the_rest_is_dropped() -> None:
    error = LookupError("no")
    faults = Faults(lambda request: error if request.payload.texts == ("bad",) else None)
    with opened() as acc:
        work = own(acc, FakeEngine(faults=faults))
        work_items = [work("good"), work("bad"), work("late")]
        with pytest.raises(LookupError) as caught:
            acc.leaves.compute_all(acc.anonymous(), work_items)
        assert caught.value is error


def test_works_that_cannot_all_be_submitted_leave_nothing_behind() -> None:
    gate = Gate()
    with gate, opened() as acc:
        work = own(acc, FakeEngine(compute=gate))

        def work_items() -> Any:
            yield work("first")
            raise LookupError("no more")

        with pytest.raises(LookupError):
            acc.leaves.compute_all(acc.anonymous(), work_items())
        gate.open()


def test_one_object_is_one_engine_and_its_variants_are_others() -> None:
    model, made = Model(), []

    def make() -> FakeEngine:
        made.append(FakeEngine())
        return made[-1]

    with opened() as acc:
        first = acc.own(model, "embedding", make)
        assert acc.own(model, "embedding", make) == first
        assert acc.own(model, "embedding", make, variant="normalized") != first
        assert acc.own(Model(), "embedding", make) != first
        assert len(made) == 3


# Single-flight ----------------------------------------------------------------------------------


def share_behind_a_gate(
    acc: Accelerator, gate: Gate, work: Work, others: int
) -> list[tuple[threading.Thread, list[Any]]]:
    """Let callers of equal work wait for one run, then let it go on."""

    def compute(identity: RequestIdentity) -> Any:
        return acc.leaves.compute(identity, work)

    callers = [in_thread(partial(compute, acc.anonymous()))]
    gate.wait_until_entered()
    callers += [in_thread(partial(compute, acc.anonymous())) for _ in range(others)]
    while _live(acc) < others + 1:
        pass
    gate.open()
    for caller, _ in callers:
        caller.join(PATIENCE_S)
    return callers


def _live(acc: Accelerator) -> int:
    driver = acc._driver  # pyright: ignore[reportPrivateUsage]
    return driver.ask(lambda: len(driver._handler.clients))  # pyright: ignore[reportPrivateUsage]


def test_equal_work_is_computed_once_and_every_caller_gets_its_own_copy() -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate)
    with gate, opened() as acc:
        work = own(acc, engine)("same", share="same")
        callers = share_behind_a_gate(acc, gate, work, 5)
        values = [found[0] for _, found in callers]
        assert len(engine.served) == 1
        for place, value in enumerate(values):
            value[:] = place  # nobody else sees it
        assert [value[0][0] for value in values] == list(range(6))


def test_a_copy_is_of_what_the_engine_returned_whichever_was_faster() -> None:
    """The one whose work it was may change his value before another has copied it."""
    gate = Gate()
    with gate, opened() as acc:
        work = own(acc, FakeEngine(compute=gate))("same", share="same")
        original: list[Any] = []

        def compute() -> Any:
            value = acc.leaves.compute(acc.anonymous(), work)
            original.append(value.copy())
            value[:] = 0
            return value

        callers = [in_thread(compute)]
        gate.wait_until_entered()
        callers += [in_thread(compute) for _ in range(7)]
        while _live(acc) < 8:
            pass
        gate.open()
        for caller, _ in callers:
            caller.join(PATIENCE_S)
        for value in original:
            np.testing.assert_array_equal(value, [vector_of("same")])


@pytest.mark.parametrize("options", [{"single_flight": False}, {}])
def test_work_is_shared_only_where_it_may_be(options: Any) -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate)
    with gate, opened(**options) as acc:
        work = own(acc, engine)("same", share="same" if options else None)
        share_behind_a_gate(acc, gate, work, 3)
    assert sum(len(batch) for batch in engine.served) == 4


def test_a_share_key_that_has_no_hash_fails_its_caller_only() -> None:
    with Accelerator() as acc:
        work = own(acc, FakeEngine())
        with pytest.raises(TypeError):
            acc.leaves.compute(acc.anonymous(), work("x", share=["no hash"]))
        acc.leaves.compute(acc.anonymous(), work("y", share="fine"))
        become_idle(acc)


def test_values_of_works_handed_over_are_taken_in_any_order_and_again() -> None:
    with opened() as acc:
        work = own(acc, FakeEngine())
        handed = acc.leaves.submit(acc.anonymous(), [work("a"), work("b")])
        for at, text in ((1, "b"), (0, "a"), (1, "b")):
            np.testing.assert_array_equal(handed.value(at), [vector_of(text)])


def test_tasks_wait_side_by_side_for_a_work_handed_over() -> None:
    gate = Gate()

    async def take(acc: Accelerator, work: Any) -> list[Any]:
        handed = acc.leaves.submit(acc.anonymous(), [work("a")], together=True)
        waiting = [asyncio.ensure_future(handed.avalue(0)) for _ in range(3)]
        await asyncio.to_thread(gate.wait_until_entered)
        waiting[0].cancel()
        gate.open()
        return await asyncio.gather(*waiting, return_exceptions=True)

    with gate, opened() as acc:
        cancelled, *found = asyncio.run(take(acc, own(acc, FakeEngine(compute=gate))))
    assert isinstance(cancelled, asyncio.CancelledError)
    for value in found:
        np.testing.assert_array_equal(value, [vector_of("a")])


def test_works_handed_over_and_cancelled_are_not_computed() -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate)
    with gate, opened() as acc:
        work = own(acc, engine)
        first, _ = in_thread(lambda: acc.leaves.compute(acc.anonymous(), work("first")))
        gate.wait_until_entered()
        handed = acc.leaves.submit(acc.anonymous(), [work("a"), work("b")])
        handed.cancel()
        gate.open()
        first.join(PATIENCE_S)
        with pytest.raises(RequestCancelledError):
            handed.value(0)
    assert [len(batch) for batch in engine.batches] == [1]
