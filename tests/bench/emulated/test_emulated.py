"""The emulated device as plain callers see it: three fronts, exact times, clean ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import replace

import pytest
from llm_harness import eventually

from bench.emulated.device import EmulatedDevice
from bench.emulated.table import H100_LIKE_8B, step_time_s
from bench.emulated.waiting import VirtualTime
from rag_accel.engine_api import GenerationInput, Message
from rag_accel.errors import ClosedError, ConfigError, EngineLostError

# A device whose first step outlasts every test.
ENDLESS = replace(H100_LIKE_8B, name="endless", base_ms=3_600_000.0)


class LateTime(VirtualTime):
    """Wake up 3 ms after every deadline, as on a machine whose CPU is busy elsewhere."""

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        super().wait_until(wake, None if deadline_s is None else deadline_s + 0.003)


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


def virtual(time: VirtualTime | None = None, **fields: object) -> EmulatedDevice:
    time = time or VirtualTime()
    return EmulatedDevice("h100_like_8b", clock=time, waiter=time, **fields)  # type: ignore[arg-type]


@pytest.fixture
def endless() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(ENDLESS) as made:
        yield made


def num_held(device: EmulatedDevice) -> int:
    stats = device.stats()
    return stats.running + stats.waiting


def expected_s(prompt: int, answer: int) -> float:
    decode = (step_time_s(H100_LIKE_8B, 1, prompt + done, 0) for done in range(1, answer))
    return step_time_s(H100_LIKE_8B, 0, 0, prompt) + sum(decode)


def test_late_wake_ups_do_not_slow_the_device() -> None:
    time = LateTime()
    with virtual(time) as device:
        device.generate(ask("one two three", 20))
    assert time.now() == pytest.approx(expected_s(3, 20) + 0.003, rel=1e-9)


def test_the_thread_wakes_once_per_step() -> None:
    time = CountingTime()
    with virtual(time) as device:
        device.generate(ask(max_tokens=50))
        assert time.num_waits == device.stats().steps == 50


def test_a_real_clock_passes_at_least_the_modelled_time() -> None:
    table = replace(H100_LIKE_8B, base_ms=1.0)
    with EmulatedDevice(table) as device:
        device.generate(ask(max_tokens=20))
        stats = device.stats()
    assert stats.window_s >= stats.busy_s > 0.02


async def test_all_plain_fronts_give_the_same_text(device: EmulatedDevice) -> None:
    text = device.generate(ask()).text
    assert "".join(device.stream(ask())) == text
    assert (await device.agenerate(ask())).text == text
    assert "".join([delta async for delta in device.astream(ask())]) == text


async def test_concurrent_callers_share_one_batch() -> None:
    with EmulatedDevice(replace(H100_LIKE_8B, base_ms=1.0)) as device:
        await asyncio.gather(*(device.agenerate(ask(f"q{n}", 20)) for n in range(50)))
        assert device.stats().decode_tokens == 50 * 20
        assert device.stats().steps < 50 * 20 / 10


def test_threads_and_several_loops_share_one_device() -> None:
    def from_a_loop(number: int) -> str:
        return asyncio.run(device.agenerate(ask(f"q{number}"))).text

    def from_a_thread(number: int) -> str:
        return device.generate(ask(f"q{number}")).text

    with virtual() as device, ThreadPoolExecutor(8) as pool:
        looped = pool.map(from_a_loop, range(8))
        plain = pool.map(from_a_thread, range(8))
        assert list(looped) == list(plain)


async def test_cancelling_a_caller_frees_its_place(endless: EmulatedDevice) -> None:
    task = asyncio.create_task(endless.agenerate(ask()))
    await asyncio.sleep(0)
    assert num_held(endless) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_held(endless) == 0


async def test_leaving_an_async_stream_frees_its_place() -> None:
    with EmulatedDevice(replace(H100_LIKE_8B, base_ms=1.0)) as device:
        async with aclosing(device.astream(ask(max_tokens=100_000))) as deltas:
            async for _ in deltas:
                break
        assert device.stats().running == 0


def test_closing_a_sync_stream_frees_its_place() -> None:
    with EmulatedDevice(replace(H100_LIKE_8B, base_ms=1.0)) as device:
        with closing(device.stream(ask(max_tokens=100_000))) as deltas:
            next(deltas)
        assert device.stats().running == 0


def test_a_loop_closed_under_its_caller_frees_the_place() -> None:
    with EmulatedDevice(replace(H100_LIKE_8B, base_ms=1.0)) as device:
        loop = asyncio.new_event_loop()
        deltas = device.astream(ask(max_tokens=100_000))
        loop.run_until_complete(anext(deltas))
        loop.close()
        eventually(lambda: device.stats().running == 0)
        assert device.generate(ask()).completion_tokens == 5


def test_a_bad_limit_is_refused_before_the_device_works(device: EmulatedDevice) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        device.generate(ask(max_tokens=0))
    assert device.stats().steps == 0


def test_closing_gives_waiting_threads_a_named_error(endless: EmulatedDevice) -> None:
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(endless.generate, ask()) for _ in range(3)]
        eventually(lambda: num_held(endless) == 3)
        endless.close()
        errors = [call.exception() for call in calls]
    assert [type(error) for error in errors] == [ClosedError] * 3
    assert len({id(error) for error in errors}) == 3


async def test_closing_gives_waiting_tasks_a_named_error(endless: EmulatedDevice) -> None:
    task = asyncio.create_task(endless.agenerate(ask()))
    await asyncio.sleep(0)
    endless.close()
    with pytest.raises(ClosedError, match="endless"):
        await task


def test_a_closed_device_refuses_work(device: EmulatedDevice) -> None:
    device.close()
    device.close()
    with pytest.raises(ClosedError):
        device.generate(ask())


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    device = EmulatedDevice(ENDLESS)
    pool = ThreadPoolExecutor(1)
    call = pool.submit(device.generate, ask())
    eventually(lambda: device.stats().running == 1)
    device.close()
    assert isinstance(call.exception(), ClosedError)
    pool.shutdown()
    assert threading.active_count() == before


def test_a_device_without_work_has_no_thread() -> None:
    before = threading.active_count()
    with EmulatedDevice("fast_fp8"):
        assert threading.active_count() == before


def test_a_device_that_breaks_tells_its_callers() -> None:
    with virtual(BrokenTime()) as device, pytest.raises(EngineLostError, match="OSError") as caught:
        device.generate(ask())
    assert isinstance(caught.value.__cause__, OSError)


def test_stats_relate_tokens_to_the_most_the_table_allows() -> None:
    time = VirtualTime()
    with virtual(time) as device:
        device.generate(ask("one two three", 10))
        stats = device.stats()
    assert (stats.steps, stats.prefill_tokens, stats.decode_tokens) == (10, 3, 10)
    assert stats.busy_s == pytest.approx(stats.window_s)
    assert stats.decode_tokens_per_s == pytest.approx(10 / stats.window_s)
    least_s = 10 / stats.max_decode_tokens_per_s + 3 / 20_000
    assert stats.utilisation == pytest.approx(least_s / stats.window_s)
    assert stats.utilisation < 0.02
    assert stats.label == "modelled, not measured"
