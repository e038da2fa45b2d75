"""A program whose calls never wait is opened in the scheduler's core with its first leaf that does.

Whatever can be seen of it is what it would be if it had been opened at its start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import Thread

import pytest
from accel_harness import become_idle, opened, settle
from leaf_calls import make_call

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.errors import BusyError
from rag_accel.leaves.leaves import Work
from rag_accel.scheduler.messages import EngineName
from rag_accel.telemetry import events as trace
from rag_accel.testing import FakeEngine

DECODING, EMBEDDING = PrimitiveKind.DECODING, PrimitiveKind.EMBEDDING


@pytest.fixture
def acc() -> Iterator[Accelerator]:
    with opened() as made:
        yield made


def is_open(acc: Accelerator, identity: RequestIdentity) -> bool:
    return acc._driver.ask(lambda: acc._driver._handler.state.find(identity.request)) is not None


def call(acc: Accelerator, identity: RequestIdentity) -> None:
    make_call(acc, identity, _engine(acc), DECODING, lambda: None)


def _engine(acc: Accelerator) -> EngineName:
    return acc.borrow("chat", DECODING)


def embedding(acc: Accelerator) -> Work:
    """Return work of an owned engine."""
    engine = FakeEngine()
    return Work(acc.own(engine, "embedding", lambda: engine), EMBEDDING, TextBatch(("text",)))


def story(acc: Accelerator, identity: RequestIdentity) -> list[str]:
    """Return the names of a request's events, in order."""
    acc._driver.ask(lambda: None)
    return [
        type(event).__name__
        for event in acc.tracer.events()
        if getattr(event, "request_id", None) == identity.request
    ]


def test_it_is_not_opened_and_yet_alive(acc: Accelerator) -> None:
    identity = acc.open_request("p")
    assert not is_open(acc, identity)
    assert not acc.is_idle
    call(acc, identity)
    assert not is_open(acc, identity)
    acc.close_request(identity)
    assert acc.is_idle


def test_its_events_and_counts_are_all_there_at_once(acc: Accelerator) -> None:
    identity = acc.open_request("p")
    call(acc, identity)
    assert acc.metrics.snapshot()["engines"]["chat"]["items"] == 1
    acc.close_request(identity)
    assert story(acc, identity) == [
        "RequestStarted",
        "NodeDispatched",
        "NodeFinished",
        "RequestEnded",
    ]
    started, *_, ended = (
        event
        for event in acc.tracer.events()
        if isinstance(event, trace.RequestStarted | trace.RequestEnded)
    )
    assert isinstance(started, trace.RequestStarted)
    assert isinstance(ended, trace.RequestEnded)
    assert (started.time_s, started.origin) == (identity.arrived_at, "program")
    assert ended.outcome == "done"
    assert ended.time_s >= started.time_s


def test_it_is_opened_with_its_first_owned_leaf_and_begins_once(acc: Accelerator) -> None:
    work = embedding(acc)
    identity = acc.open_request("p")
    call(acc, identity)
    acc.leaves.compute(identity, work)
    assert is_open(acc, identity)
    run = acc._driver._handler.state.requests[identity.request]
    assert run.arrived_at == identity.arrived_at
    acc.close_request(identity)
    assert not is_open(acc, identity)
    assert story(acc, identity).count("RequestStarted") == 1
    assert story(acc, identity)[-1] == "RequestEnded"
    become_idle(acc)


def test_one_that_has_brought_such_a_leaf_is_foreseen_from_its_start(acc: Accelerator) -> None:
    work = embedding(acc)
    with acc.request("p") as identity:
        acc.leaves.compute(identity, work)
    with acc.request("p") as identity, acc.request("q") as other:
        assert is_open(acc, identity)
        assert not is_open(acc, other)
    acc.forget_program("p")
    with acc.request("p") as identity:
        assert not is_open(acc, identity)


def test_one_with_a_deadline_is_known_at_once(acc: Accelerator) -> None:
    identity = acc.open_request("p", deadline_s=60)
    assert is_open(acc, identity)
    acc.close_request(identity)


def test_so_is_one_whose_leaves_could_be_refused_later_on() -> None:
    with opened(on_full="raise", max_requests=20) as acc:
        settle(acc)
        work = embedding(acc)
        first = acc.open_request("p")
        assert is_open(acc, first)
        others = [acc.open_request("q") for _ in range(25)]
        acc.leaves.compute(first, work)
        with pytest.raises(BusyError):
            acc.leaves.compute(others[-1], work)
        for identity in (first, *others):
            acc.close_request(identity)


def test_so_are_those_that_fill_half_the_bound() -> None:
    with opened(max_requests=4) as acc:
        settle(acc)
        programs = [acc.open_request("p") for _ in range(4)]
        assert [is_open(acc, one) for one in programs] == [False, True, True, True]
        for one in programs:
            acc.close_request(one)
        assert acc.is_idle


def test_one_that_began_while_there_was_room_waits_for_none_later() -> None:
    with opened(max_requests=4) as acc:
        settle(acc)
        work = embedding(acc)
        first = acc.open_request("p")
        assert not is_open(acc, first)
        others = [acc.open_request("q") for _ in range(8)]
        asking = Thread(target=acc.leaves.compute, args=(first, work))
        asking.start()
        asking.join(20)
        has_ended = not asking.is_alive()
        for identity in (first, *others):
            acc.close_request(identity)
        asking.join(20)
        assert has_ended, "it waits for programs that may wait for it"
        become_idle(acc)


def test_who_waits_enters_when_one_that_was_not_opened_ends() -> None:
    with opened(max_requests=3) as acc:
        settle(acc)
        work = embedding(acc)
        first, *others = [acc.open_request("p") for _ in range(3)]
        assert [is_open(acc, one) for one in (first, *others)] == [False, True, True]
        handed = acc.leaves.submit(acc.anonymous(), [work])
        pending = acc._driver.ask(lambda: len(acc._driver._handler.state.pending))
        acc.close_request(first)
        values: list[object] = []
        asking = Thread(target=lambda: values.append(handed.value(0)))
        asking.start()
        asking.join(20)
        num_values = len(values)
        for identity in others:
            acc.close_request(identity)
        asking.join(20)
        assert (pending, num_values) == (1, 1)


def test_leaves_of_many_threads_open_it_once(acc: Accelerator) -> None:
    work = embedding(acc)
    for number in range(20):
        with acc.request(f"p{number}") as identity:
            threads = [
                Thread(target=acc.leaves.compute, args=(identity, work)) for each in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
    become_idle(acc)
    assert acc._driver.internal_errors == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_forked_child_it_ends_silently(acc: Accelerator) -> None:
    identity = acc.open_request("p")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            identity.close()
            acc.close_request(identity)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not acc.is_idle
    acc.close_request(identity)
    assert acc.is_idle
