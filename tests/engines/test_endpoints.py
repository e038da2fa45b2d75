"""Calls of threads and loops that wait for their turn at an endpoint."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from forked_child import in_child

from rag_accel.engines.http.endpoint_limit import Urgency
from rag_accel.engines.http.endpoints import Endpoint, EndpointGate, EndpointPlace, Endpoints
from rag_accel.engines.http.retry_after import reset_s
from rag_accel.errors import DeadlineError

#: bounds a hang; nothing is measured
PATIENCE_S = 20.0


class Response:
    """What an error of a client tells of the answer."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


class RefusedError(Exception):
    """An error as the openai client raises it."""

    def __init__(self, status: int = 429, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = Response(headers or {})


class Clock:
    """A clock that a test moves forward."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def answer(place: EndpointPlace) -> str:
    return "answer"


async def aanswer(place: EndpointPlace) -> str:
    return "answer"


class Paused(Endpoint):
    """An endpoint that has asked for a pause, which ends with ``resume``."""

    def __init__(self) -> None:
        self._clock = Clock()
        super().__init__(self._clock)
        with pytest.raises(RefusedError):
            self.call(self._refuse)

    def _refuse(self, place: EndpointPlace) -> str:
        raise RefusedError(headers={"retry-after": "100"})

    def resume(self) -> None:
        """End the pause, and let everybody go."""
        self._clock.ahead_s += 101.0
        self.post(lambda: None)


def wait_until(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.001)


async def await_until(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until
        await asyncio.sleep(0.001)


def assert_idle(endpoint: Endpoint) -> None:
    assert (endpoint.limit.num_in_flight, endpoint.limit.num_waiting) == (0, 0)
    assert not endpoint.is_busy


def test_an_answer_and_an_error_give_the_place_back() -> None:
    endpoint = Endpoint()
    assert endpoint.call(answer) == "answer"
    with pytest.raises(ZeroDivisionError):
        endpoint.call(lambda place: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        endpoint.call(interrupt)
    assert_idle(endpoint)


def interrupt(place: EndpointPlace) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_refused_call_is_tried_as_often_as_its_client_would(attempts: int) -> None:
    endpoint, tried = Endpoint(), list[int]()

    def ask(place: EndpointPlace) -> str:
        tried.append(place.num_retries)
        raise RefusedError(headers={"retry-after-ms": "1"})

    with pytest.raises(RefusedError):
        endpoint.call(ask, attempts)
    assert tried == list(range(attempts))
    assert_idle(endpoint)


@pytest.mark.parametrize("headers", [None, 7, "text"])
def test_an_error_with_odd_headers_is_raised_as_it_is(headers: Any) -> None:
    endpoint, error = Endpoint(), RefusedError()
    error.response.headers = headers

    def ask(place: EndpointPlace) -> str:
        raise error

    with pytest.raises(RefusedError) as raised:
        endpoint.call(ask, 3)
    assert raised.value is error
    assert_idle(endpoint)


def test_a_server_that_forbids_another_attempt_is_obeyed() -> None:
    endpoint, tried = Endpoint(), list[int]()

    def ask(place: EndpointPlace) -> str:
        tried.append(place.num_retries)
        raise RefusedError(headers={"x-should-retry": "false"})

    with pytest.raises(RefusedError):
        endpoint.call(ask, 3)
    assert tried == [0]


def test_a_call_that_waits_for_another_attempt_after_an_error_holds_no_place() -> None:
    endpoint, tried = Endpoint(), list[int]()

    def ask(place: EndpointPlace) -> str:
        tried.append(endpoint.limit.num_in_flight)
        if len(tried) == 1:
            raise RefusedError(500, {"retry-after-ms": "300"})
        return "answer"

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(endpoint.call, ask, 2)
        wait_until(lambda: tried and not endpoint.limit.num_in_flight)
        assert not found.done()
        assert found.result(PATIENCE_S) == "answer"
    assert tried == [1, 1]
    assert endpoint.limit.bound is None


async def test_tasks_and_threads_wait_and_a_cancelled_one_leaves() -> None:
    endpoint = Paused()
    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(endpoint.call, answer) for _ in range(3)]
        tasks = [asyncio.create_task(endpoint.acall(aanswer)) for _ in range(3)]
        await await_until(lambda: endpoint.limit.num_waiting == 6)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert endpoint.limit.num_waiting == 5
        endpoint.resume()
        found = await asyncio.wait_for(asyncio.gather(*tasks[1:]), PATIENCE_S)
        assert found + [thread.result(PATIENCE_S) for thread in threads] == ["answer"] * 5
    assert_idle(endpoint)


async def test_a_task_that_is_cancelled_in_its_call_gives_the_place_back() -> None:
    endpoint = Endpoint()

    async def hang(place: EndpointPlace) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(endpoint.acall(hang))
    await await_until(lambda: endpoint.limit.num_in_flight)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_idle(endpoint)


def test_a_task_that_is_collected_gives_the_place_back() -> None:
    endpoint = Endpoint()

    async def hang(place: EndpointPlace) -> None:
        await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    calling = endpoint.acall(hang)
    loop.run_until_complete(begin(calling))
    assert endpoint.limit.num_in_flight == 1
    loop.close()
    del calling
    gc.collect()
    assert_idle(endpoint)


async def begin(calling: Any) -> None:
    calling.send(None)  # as a task does, which then goes with its loop


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_deadline_ends_the_waiting(in_loop: bool) -> None:
    endpoint = Paused()

    def wait() -> str:
        if in_loop:
            return asyncio.run(endpoint.acall(aanswer, deadline=0.0))
        return endpoint.call(answer, deadline=0.0)

    with pytest.raises(DeadlineError, match="0 calls in flight"):
        wait()
    assert_idle(endpoint)


def test_a_deadline_after_a_refusal_raises_the_refusal() -> None:
    endpoint = Endpoint()

    def ask(place: EndpointPlace) -> str:
        raise RefusedError(headers={"retry-after": "100"})

    with pytest.raises(RefusedError):
        endpoint.call(ask, 3, deadline=time.monotonic() + 0.05)
    assert_idle(endpoint)


def test_a_loop_that_was_closed_loses_its_waiter_and_no_other() -> None:
    endpoint = Paused()
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.new_event_loop()
        lost = endpoint.acall(aanswer)
        loop.run_until_complete(begin(lost))
        waiting = pool.submit(endpoint.call, answer)
        wait_until(lambda: endpoint.limit.num_waiting == 2)
        loop.close()
        endpoint.resume()
        assert waiting.result(PATIENCE_S) == "answer"
    assert_idle(endpoint)
    lost.close()


async def test_a_blocking_call_in_a_loop_does_not_wait_for_the_loops_own_tasks() -> None:
    endpoint = await asyncio.to_thread(Paused)
    task = asyncio.create_task(endpoint.acall(aanswer))
    await await_until(lambda: endpoint.limit.num_waiting)
    assert endpoint.call(answer) == "answer"
    endpoint.resume()
    assert await task == "answer"


def test_a_call_within_a_call_does_not_wait_for_it() -> None:
    endpoint = Endpoint()

    def ask(place: EndpointPlace) -> str:
        endpoint.limit.refuse(place.call, time.monotonic(), 100.0)
        return endpoint.call(answer)

    assert endpoint.call(ask) == "answer"
    assert_idle(endpoint)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer")
def test_calls_of_a_signal_handler_meet_no_lock() -> None:
    endpoint, seen = Endpoint(), list[str]()

    def handle(*_: object) -> None:
        seen.append(endpoint.call(answer))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)

    before = signal.signal(signal.SIGVTALRM, handle)
    try:
        until = time.monotonic() + PATIENCE_S
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
        while len(seen) < 100 and time.monotonic() < until:
            assert endpoint.call(answer) == "answer"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert len(seen) >= 100
    assert_idle(endpoint)


def test_an_interrupt_loses_no_event() -> None:
    endpoint = Endpoint()
    leave = endpoint.limit.leave
    interrupts = [True]

    def interrupted(call: Any) -> None:
        leave(call)
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt

    endpoint.limit.leave = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        endpoint.call(answer)
    assert endpoint.call(answer) == "answer"
    assert_idle(endpoint)


def test_a_forked_child_begins_anew() -> None:
    endpoint = Paused()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(endpoint.call, answer)
        wait_until(lambda: endpoint.limit.num_waiting)
        assert in_child(lambda: [endpoint.call(answer), endpoint.limit.bound]) == ["answer", None]
        endpoint.resume()
        assert waiting.result(PATIENCE_S) == "answer"


def test_an_answer_that_is_kept_gives_its_place_back_when_it_goes() -> None:
    endpoint = Endpoint()

    def ask(place: EndpointPlace) -> Response:
        response = Response({})
        place.keep(response)
        return response

    kept = endpoint.call(ask)
    assert endpoint.limit.num_in_flight == 1
    assert kept.headers == {}
    del kept
    gc.collect()
    assert_idle(endpoint)


def test_the_table_is_bounded_and_forgets_what_is_idle() -> None:
    endpoints = Endpoints(most=3)
    busy = endpoints.of("busy")

    def ask(place: EndpointPlace) -> None:
        for number in range(10):
            endpoints.of(number).call(answer)
        assert len(endpoints) == 3
        assert endpoints.of("busy") is busy

    busy.call(ask)


def test_a_gate_passes_the_urgency_and_the_deadline_on() -> None:
    endpoints = Endpoints()
    seen = list[Urgency]()

    def ask(place: EndpointPlace) -> str:
        seen.append(place.call.urgency)
        return "answer"

    gate = EndpointGate(lambda: Urgency.BATCH, lambda: time.monotonic() + 60, endpoints)
    assert gate.call("key", ask, 1) == "answer"
    assert seen == [Urgency.BATCH]


@pytest.mark.parametrize(
    ("remaining", "reset", "seconds"),
    [
        ("0", "1s", 1.0),
        ("0", "6m0s", 360.0),
        ("0", "20ms", 0.02),
        ("0", "1h2m3.5s", 3723.5),
        ("0", "1m", 60.0),
        ("0", "", 0.0),
        ("0", "-1s", 0.0),
        ("0", "soon", 0.0),
        ("1", "1s", 0.0),
        ("", "1s", 0.0),
    ],
)
def test_the_reset_of_a_limit_is_read(remaining: str, reset: str, seconds: float) -> None:
    headers = {"x-ratelimit-remaining-requests": remaining, "x-ratelimit-reset-requests": reset}
    assert reset_s(headers) == pytest.approx(seconds)
