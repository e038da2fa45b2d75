"""A manual clock moves only when told to."""

from __future__ import annotations

import threading

import pytest

from rag_accel.clock import Clock
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock


def test_a_manual_clock_is_a_clock() -> None:
    assert isinstance(ManualClock(), Clock)


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(start_s=10.0)
    assert (clock.now(), clock.now()) == (10.0, 10.0)
    assert clock.advance(2.5) == 12.5
    assert clock.now() == 12.5


@pytest.mark.parametrize("seconds", [-0.1, float("nan")])
def test_time_never_goes_back(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises(ConfigError, match="cannot go back"):
        clock.advance(seconds)
    assert clock.now() == 0.0


def test_a_sleeper_wakes_when_enough_time_has_passed_and_not_before() -> None:
    clock, awake = ManualClock(), threading.Event()

    def sleep() -> None:
        clock.sleep(2.0)
        awake.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    clock.wait_for_sleepers(1)
    assert not awake.is_set()
    clock.advance(1.0)
    thread.join(5.0)
    assert awake.is_set()


def test_sleeping_no_time_does_not_block() -> None:
    ManualClock().sleep(0.0)


def test_waiting_for_sleepers_that_never_come_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        ManualClock().wait_for_sleepers(1, timeout_s=0.01)


def test_advances_of_many_threads_add_up() -> None:
    clock = ManualClock()
    threads = [
        threading.Thread(target=lambda: [clock.advance(1.0) for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == 4000.0
