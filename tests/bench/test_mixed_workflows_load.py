"""Check how a load is run and how a limit is found, on a loop whose time passes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bench.emulated.device import EmulatedDevice
from bench.research.mixed.bench import gains
from bench.research.mixed.load import MixedLoad, Window, run_load
from bench.research.mixed.programs import Answer
from bench.research.mixed.sweep import Bracket, find_limit
from bench.research.mixed.trace import Request, Workflow
from rag_accel.errors import ConfigError

REQUESTS = [Request(number, Workflow.ONE_SHOT, f"question {number}") for number in range(500)]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Run timers at once, in order, by a clock that shows when they were due."""

    _virtual_s = 0.0

    def time(self) -> float:
        """Return the virtual seconds."""
        return self._virtual_s

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            self._virtual_s = max(self._virtual_s, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class OneAtATime:
    """Serve requests one after the other, each in ``service_s``."""

    def __init__(self, service_s: float, failing: int = -1) -> None:
        self.name = "fake"
        self.cancelled: list[int] = []
        self._service_s = service_s
        self._failing = failing
        self._lock = asyncio.Lock()

    async def serve(self, request: Request) -> Answer:
        """Wait for the turn, then for the service."""
        try:
            async with self._lock:
                await asyncio.sleep(self._service_s)
        except asyncio.CancelledError:
            self.cancelled.append(request.number)
            raise
        if request.number == self._failing:
            raise ValueError("this one fails")
        return Answer(request.question.upper(), (str(request.number),))

    def close(self) -> None:
        """Stop nothing."""


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    """Return a device that nobody uses."""
    with EmulatedDevice("fast_fp8") as device:
        yield device


def virtually(work: Any) -> Any:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def load(system: OneAtATime, rate_rps: float, window: Window, device: EmulatedDevice) -> MixedLoad:
    """Run one load in virtual time."""
    return virtually(run_load(system, REQUESTS, rate_rps, window, device))


def test_an_idle_system_has_its_service_time(device: EmulatedDevice) -> None:
    found = load(OneAtATime(0.01), 0.5, Window(0, 100, 10), device)
    assert found.p50_s == pytest.approx(0.01)
    assert found.unserved == 0
    assert len(found.latency_s) == len(found.answers)
    assert found.answers[3] == Answer("QUESTION 3", ("3",))


def test_a_latency_counts_from_when_the_request_was_due(device: EmulatedDevice) -> None:
    found = load(OneAtATime(1.0), 2.0, Window(0, 100, 1000), device)
    # Served at 1/s and coming at 2/s, the last of some 200 waits for the 100 s it is behind.
    assert found.latency_s[-1] == pytest.approx(len(found.latency_s) - 100, abs=5)
    assert found.p99_s > found.p95_s > found.p50_s > 10


def test_requests_of_the_warm_up_are_served_and_not_counted(device: EmulatedDevice) -> None:
    found = load(OneAtATime(0.01), 5.0, Window(20, 20, 10), device)
    whole = load(OneAtATime(0.01), 5.0, Window(0, 40, 10), device)
    assert len(found.answers) == len(whole.answers)
    assert 60 < len(found.latency_s) < 140
    assert found.latency_s == pytest.approx(whole.latency_s[-len(found.latency_s) :])


def test_requests_left_after_the_drain_are_cancelled_and_counted(device: EmulatedDevice) -> None:
    system = OneAtATime(1.0)
    found = load(system, 2.0, Window(0, 50, 5), device)
    assert found.unserved == len(system.cancelled) > 30
    assert len(found.latency_s) == found.unserved + len(found.answers)
    assert max(found.latency_s) > 5


def test_a_request_that_fails_fails_the_load(device: EmulatedDevice) -> None:
    with pytest.raises(ValueError, match="this one fails"):
        load(OneAtATime(0.01, failing=3), 2.0, Window(0, 10, 5), device)


def test_a_load_without_arrivals_is_an_error(device: EmulatedDevice) -> None:
    with pytest.raises(ConfigError, match="nothing arrives"):
        load(OneAtATime(0.01), 0.001, Window(0, 1, 5), device)


def test_requests_begin_anew_after_the_last(device: EmulatedDevice) -> None:
    system = OneAtATime(0.001)
    found = virtually(run_load(system, REQUESTS[:3], 5.0, Window(0, 10, 5), device))
    assert set(found.answers) == {0, 1, 2}
    assert len(found.latency_s) > 30


@pytest.mark.parametrize("start", [1.0, 37.0, 500.0])
@pytest.mark.parametrize("true", [10.0, 36.9, 64.0])
def test_the_limit_of_a_system_that_has_one_is_found(start: float, true: float) -> None:
    tried: list[float] = []

    async def meets(rate_rps: float, seed: int) -> bool:
        tried.append(rate_rps)
        assert seed == 0
        return rate_rps <= true

    limit = asyncio.run(find_limit(meets, start, precision=0.05, probes=30))
    assert limit.passes <= true < limit.fails <= limit.passes * 1.05
    assert limit.passes < limit.middle < limit.fails
    assert tried[0] == start
    assert {limit.passes, limit.fails} <= set(tried)
    assert len(set(tried)) == len(tried)


def test_a_limit_lies_between_what_was_tried_when_the_probes_are_over() -> None:
    async def meets(rate_rps: float, seed: int) -> bool:
        return rate_rps < 5

    limit = asyncio.run(find_limit(meets, 1.0, growth=2, precision=0.01, probes=4))
    assert limit == Bracket(4, 8)


def test_other_arrivals_are_tried_at_both_ends() -> None:
    tried: list[tuple[float, int]] = []

    async def meets(rate_rps: float, seed: int) -> bool:
        tried.append((rate_rps, seed))
        return rate_rps < 5

    limit = asyncio.run(find_limit(meets, 2.0, growth=2, precision=1.0, probes=9, seeds=3))
    assert limit == Bracket(4, 8)
    assert [rate for rate, seed in tried if seed == 0] == [2, 4, 8]
    assert sorted(one for one in tried if one[1]) == [(4, 1), (4, 2), (8, 1), (8, 2)]


def test_one_lucky_load_does_not_make_a_limit() -> None:
    async def lucky(rate_rps: float, seed: int) -> bool:
        return rate_rps < 5 or (rate_rps == 8 and seed == 0)

    limit = asyncio.run(find_limit(lucky, 2.0, growth=2, precision=1.0, probes=9, seeds=3))
    assert limit == Bracket(4, 8)


def test_one_unlucky_load_does_not_make_a_limit() -> None:
    async def unlucky(rate_rps: float, seed: int) -> bool:
        return rate_rps < 10 and (rate_rps != 4 or seed != 0)

    limit = asyncio.run(find_limit(unlucky, 2.0, growth=2, precision=1.0, probes=9, seeds=3))
    assert limit == Bracket(8, 16)


def test_a_limit_over_another_is_as_uncertain_as_both() -> None:
    ratio = Bracket(8, 10).over(Bracket(4, 5))
    assert ratio == Bracket(1.6, 2.5)
    assert ratio.middle == pytest.approx(2.0)


@pytest.mark.parametrize(("met", "text"), [(False, "no rate meets"), (True, "every rate meets")])
def test_a_system_without_a_limit_is_an_error(met: bool, text: str) -> None:
    tried: list[float] = []

    async def meets(rate_rps: float, seed: int) -> bool:
        tried.append(rate_rps)
        return met

    with pytest.raises(ConfigError, match=text):
        asyncio.run(find_limit(meets, 8.0, probes=3))
    assert len(tried) == 6


@pytest.mark.parametrize("bad", [{"growth": 1.0}, {"precision": 0.0}, {"probes": 0}, {"seeds": 0}])
def test_a_search_with_bad_bounds_is_refused(bad: dict[str, Any]) -> None:
    async def meets(rate_rps: float, seed: int) -> bool:
        return True

    with pytest.raises(ConfigError, match="bad search"):
        asyncio.run(find_limit(meets, 1.0, **bad))


def test_the_limit_of_a_queue_is_found_by_loads(device: EmulatedDevice) -> None:
    async def search() -> Bracket:
        async def meets(rate_rps: float, seed: int) -> bool:
            window = Window(0, 60, 60, seed)
            found = await run_load(OneAtATime(0.1), REQUESTS, rate_rps, window, device)
            return found.p95_s <= 0.5

        return await find_limit(meets, 1.0, precision=0.1, seeds=3)

    # Served at 10/s; for M/D/1 a 95th percentile of five services lies near 80 % of that.
    limit = virtually(search())
    assert 5 < limit.passes < limit.fails < 10


def test_gains_are_medians_over_pairs_of_loads() -> None:
    def loads(*latencies: float) -> list[MixedLoad]:
        return [MixedLoad(1.0, (one, one, 3 * one), 0, 0.0, 0.0, {}) for one in latencies]

    assert gains(loads(4.0, 9.0, 2.0), loads(2.0, 1.0, 2.0)) == (2.0, 2.0)
