"""The emulated device: exact times, one batch, clean ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from device_harness import Caller, VirtualTime, generate
from llm_harness import eventually

from bench.emulated.device import EmulatedDevice
from bench.emulated.table import H100_LIKE_1B, step_time_s
from rag_accel.engine_api import GenerationInput, Message
from rag_accel.errors import ClosedError, EngineLostError

# A device whose first step outlasts every test.
ENDLESS = replace(H100_LIKE_1B, name="endless", base_ms=3_600_000.0)


class LateTime(VirtualTime):
    """Wake up 1 ms after every deadline, as on a machine whose CPU is busy elsewhere."""

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        super().wait_until(wake, None if deadline_s is None else deadline_s + 0.001)


class BrokenTime(VirtualTime):
    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        raise OSError("no timer")


class CountingTime(VirtualTime):
    num_waits = 0

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        self.num_waits += deadline_s is not None
        super().wait_until(wake, deadline_s)


def ask(text: str = "what is rag", max_tokens: int | None = 5) -> GenerationInput:
    return GenerationInput((Message("user", text),), max_tokens=max_tokens)


def virtual(time: VirtualTime) -> EmulatedDevice:
    return EmulatedDevice(H100_LIKE_1B, clock=time, wait=time.wait_until)


@pytest.fixture
def endless() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(ENDLESS) as made:
        yield made


def num_held(device: EmulatedDevice) -> int:
    return device.batch.num_running + device.batch.num_waiting


def expected_s(prompt: int, answer: int) -> float:
    decode = (step_time_s(H100_LIKE_1B, 1, prompt + done, 0) for done in range(1, answer))
    return step_time_s(H100_LIKE_1B, 0, 0, prompt) + sum(decode)


def test_late_wake_ups_do_not_slow_the_device() -> None:
    time = LateTime()
    with virtual(time) as device:
        generate(device, ask("one two three", 20))
    assert time.now() == pytest.approx(expected_s(3, 20) + 0.001, rel=1e-9)


def test_the_thread_wakes_once_per_step() -> None:
    time = CountingTime()
    with virtual(time) as device:
        generate(device, ask(max_tokens=50))
        assert time.num_waits == device.batch.counters.steps == 50


def test_callers_share_every_step_of_one_batch() -> None:
    with virtual(VirtualTime()) as device:
        callers = [Caller() for _ in range(50)]
        scripts = [device.script(ask(f"q{number}", 20)) for number in range(50)]
        device.submit(list(map(device.plan, scripts, callers)))
        assert [caller.wait().output for caller in callers] == [each.output() for each in scripts]
        assert device.batch.counters.decode_tokens == 50 * 20
        assert device.batch.counters.steps == 20


def test_closing_gives_waiting_threads_a_named_error(endless: EmulatedDevice) -> None:
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(generate, endless, ask()) for _ in range(3)]
        eventually(lambda: num_held(endless) == 3)
        endless.close()
        errors = [call.exception() for call in calls]
    assert [type(error) for error in errors] == [ClosedError] * 3
    assert len({id(error) for error in errors}) == 3


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    device = EmulatedDevice(ENDLESS)
    pool = ThreadPoolExecutor(1)
    call = pool.submit(generate, device, ask())
    eventually(lambda: device.batch.num_running == 1)
    device.close()
    assert isinstance(call.exception(), ClosedError)
    pool.shutdown()
    assert threading.active_count() == before


def test_a_device_that_breaks_tells_its_callers() -> None:
    with virtual(BrokenTime()) as device, pytest.raises(EngineLostError, match="OSError") as caught:
        generate(device, ask())
    assert isinstance(caught.value.__cause__, OSError)
