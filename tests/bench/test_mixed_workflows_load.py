"""Check how a load is run and how a limit is found, on a loop whose time passes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bench.mixed.load import MixedLoad, Window, run_load
from bench.mixed.programs import Answer
from bench.mixed.rows import same_rows
from bench.mixed.sweep import find_limit
from bench.mixed.trace import Request, Workflow
from rag_accel.engines.llm.emulated import EmulatedDevice
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
        self.search_s: list[float] = []
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
        self.search_s.append(self._service_s)
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
    assert len(found.latency_s) == len(found.answers) == len(found.search_s)
    assert found.answers[3] == Answer("QUESTION 3", ("3",))


def test_a_latency_counts_from_when_the_request_was_due(device: EmulatedDevice) -> None:
    found = load(OneAtATime(1.0), 2.0, Window(0, 100, 1000), device)
    # Served at 1/s and coming at 2/s, the last of some 200 waits for the 100 s it is behind.
    assert found.latency_s[-1] == pytest.approx(len(found.latency_s) - 100, abs=5)
    assert found.p95_s > found.p50_s > 10


def test_requests_of_the_warm_up_are_served_and_not_counted(device: EmulatedDevice) -> None:
    found = load(OneAtATime(0.01), 5.0, Window(20, 20, 10), device)
    whole = load(OneAtATime(0.01), 5.0, Window(0, 40, 10), device)
    assert len(found.answers) == len(whole.answers)
    assert 60 < len(found.latency_s) < 140
    assert found.latency_s == pytest.approx(whole.latency_s[-len(found.latency_s) :])
    assert len(found.search_s) == len(found.latency_s)


def test_whoever_is_left_after_the_drain_is_cancelled_and_counts(device: EmulatedDevice) -> None:
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

    async def meets(rate_rps: float) -> bool:
        tried.append(rate_rps)
        return rate_rps <= true

    limit = asyncio.run(find_limit(meets, start, precision=0.05, probes=30))
    assert limit <= true <= limit * 1.05
    assert tried[0] == start
    assert limit in tried


def test_a_limit_is_what_met_the_objective_when_the_probes_are_over() -> None:
    async def meets(rate_rps: float) -> bool:
        return rate_rps < 5

    assert asyncio.run(find_limit(meets, 1.0, growth=2, precision=0.01, probes=4)) == 4


def test_a_system_that_never_meets_the_objective_is_an_error() -> None:
    async def meets(rate_rps: float) -> bool:
        return False

    with pytest.raises(ConfigError, match="no rate meets"):
        asyncio.run(find_limit(meets, 8.0, probes=3))


@pytest.mark.parametrize("bad", [{"growth": 1.0}, {"precision": 0.0}, {"probes": 0}])
def test_a_search_with_bad_bounds_is_refused(bad: dict[str, Any]) -> None:
    async def meets(rate_rps: float) -> bool:
        return True

    with pytest.raises(ConfigError, match="bad search"):
        asyncio.run(find_limit(meets, 1.0, **bad))


def test_the_limit_of_a_queue_is_found_by_loads(device: EmulatedDevice) -> None:
    async def search() -> float:
        async def meets(rate_rps: float) -> bool:
            window = Window(0, 60, 60)
            found = await run_load(OneAtATime(0.1), REQUESTS, rate_rps, window, device)
            return found.p95_s <= 0.5

        return await find_limit(meets, 1.0, precision=0.1)

    # Served at 10/s; for M/D/1 a 95th percentile of five services lies near 80 % of that.
    assert 5 < virtually(search()) < 10


def test_only_requests_that_both_served_are_compared() -> None:
    answers = {1: Answer("a", ("1", "2")), 2: Answer("b", ("3",)), 3: Answer("c", ())}
    other = {1: Answer("a", ("2", "1")), 2: Answer("b", ("3",)), 4: Answer("d", ())}
    loads = [MixedLoad(1.0, (1.0,), (), 0, 0.0, 0.0, one) for one in (answers, other)]
    ids, texts = same_rows("ours", "here", *loads)
    assert (ids.metric, ids.median, ids.n) == ("identical_ids", 1, 2)
    assert (texts.metric, texts.median, texts.n) == ("identical_texts", 2, 2)
