"""A handle holds a request that runs on its own."""

from __future__ import annotations

import gc
import threading

import pytest
from accel_harness import (
    PATIENCE_S,
    Gate,
    function_graph,
    generation_graph,
    opened,
    reply,
)

from rag_accel import Accelerator, BusyError, DeadlineError
from rag_accel.testing import FakeEngine


def test_a_result_can_be_asked_for_again_and_by_many_threads() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        handle = acc.submit(generation_graph(), input="x")
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(handle.result(PATIENCE_S)))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        gate.open()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert found == [reply("x")] * 5
        assert handle.result() == reply("x")


def test_who_does_not_wait_long_enough_is_told_and_may_wait_again() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        handle = acc.submit(generation_graph(), input="x")
        with pytest.raises(DeadlineError, match="no result yet"):
            handle.result(0.01)
        gate.open()
        assert handle.result(PATIENCE_S) == reply("x")


def test_past_the_bound_submit_refuses_at_once_and_takes_again_later() -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate), max_requests=2) as acc:
        handles = [acc.submit(generation_graph(), input=str(n)) for n in range(2)]
        for _ in range(3):
            with pytest.raises(BusyError):
                acc.submit(generation_graph(), input="x")
        gate.open()
        assert [handle.result(PATIENCE_S) for handle in handles] == [reply("0"), reply("1")]
        assert acc.submit(generation_graph(), input="x").result(PATIENCE_S) == reply("x")


def test_a_handle_keeps_the_accelerator_of_its_request_open() -> None:
    with Gate() as gate:
        handle = Accelerator(llm=FakeEngine(compute=gate)).submit(generation_graph(), input="x")
        gc.collect()
        gate.open()
        assert handle.result(PATIENCE_S) == reply("x")
    del handle
    gc.collect()


def test_requests_whose_handles_are_dropped_run_to_their_end() -> None:
    done = threading.Semaphore(0)
    with opened() as acc:
        for _ in range(10):
            acc.submit(function_graph(lambda text: done.release()), input="x")
        for _ in range(10):
            assert done.acquire(timeout=PATIENCE_S)
