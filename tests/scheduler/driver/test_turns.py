"""Whoever has the turn deals with messages: the driver's thread, or that of an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import PrimitiveKind
from rag_accel.scheduler.driver.turns import MAX_DEALT, Turns
from rag_accel.scheduler.messages import CallMade, EngineName, Event, Reported, RequestId, Tick

PATIENCE_S = 20.0


class State:
    wake_at: float | None = None


class Recorder:
    """Stand for the handler: keep which thread dealt with what, and do what a message says."""

    def __init__(self) -> None:
        self.state = State()
        self.seen: list[tuple[int | None, int]] = []
        self.more: list[bool] = []
        self.events: list[Event] = []
        self.turned_away: list[int] = []
        self.changed = threading.Condition()
        self.is_closed = False

    def handle(self, event: Event, attached: Any, more: bool = False) -> None:
        if callable(attached):
            attached()
            return
        with self.changed:
            self.seen.append((attached, threading.get_ident()))
            self.more.append(more)
            self.events.append(event)
            self.changed.notify_all()

    def catch_up(self) -> None:
        """Have put nothing off."""

    def take_in(self, event: Event, attached: Any) -> None:
        self.turned_away.append(attached)

    def close(self) -> None:
        self.is_closed = True

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, PATIENCE_S)


class Rig:
    def __init__(self) -> None:
        self.handler = Recorder()
        self.turns = Turns(self.handler, MonotonicClock())  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.turns.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.turns.post((None, None))
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    if made.thread.is_alive():
        made.stop()


def test_who_brings_a_step_deals_with_it_in_its_own_thread(rig: Rig) -> None:
    rig.turns.post_and_drain((Tick(), 1))
    rig.handler.wait_for(1)
    rig.turns.post((Tick(), 2))
    rig.handler.wait_for(2)
    assert rig.handler.seen == [(1, threading.get_ident()), (2, rig.thread.ident)]


def test_what_came_before_is_dealt_with_before(rig: Rig) -> None:
    def fill() -> None:
        # The turn is taken: the driver's thread cannot look meanwhile.
        for number in range(3):
            rig.turns.post((Tick(), number))

    rig.turns.post_and_drain((Tick(), fill))
    rig.handler.wait_for(3)
    assert [number for number, _ in rig.handler.seen] == [0, 1, 2]
    assert {thread for _, thread in rig.handler.seen} == {threading.get_ident()}
    assert rig.handler.more == [True, True, False]


def test_who_finds_the_turn_taken_leaves_its_message_to_the_driver(rig: Rig) -> None:
    is_in, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_in.set()
        assert may_go.wait(PATIENCE_S)

    rig.turns.post((Tick(), hold))
    assert is_in.wait(PATIENCE_S)
    rig.turns.post_and_drain((Tick(), 1))  # returns at once
    may_go.set()
    rig.handler.wait_for(1)
    assert rig.handler.seen == [(1, rig.thread.ident)]


def made(request: int) -> CallMade:
    kind = PrimitiveKind.FUNCTION
    return CallMade(RequestId(request), "x", EngineName("e"), kind, 0.0, 0.0, 1.0, True)


def test_reports_that_follow_each_other_are_one_event_in_their_place(rig: Rig) -> None:
    def fill() -> None:
        for number in range(3):
            rig.turns.mailbox.put_quietly((made(number), None))
        rig.turns.mailbox.put_quietly((Tick(), 1))
        rig.turns.mailbox.put_quietly((made(3), None))

    rig.turns.post_and_drain((Tick(), fill))
    rig.handler.wait_for(3)
    assert rig.handler.events == [
        Reported((made(0), made(1), made(2))),
        Tick(),
        Reported((made(3),)),
    ]
    assert rig.handler.more == [True, True, False]


def test_an_engines_thread_is_not_kept_from_its_next_step_for_ever(rig: Rig) -> None:
    count = 3 * MAX_DEALT

    def fill() -> None:
        for number in range(count):
            rig.turns.mailbox.put_quietly((Tick(), number))

    rig.turns.post_and_drain((Tick(), fill))
    rig.handler.wait_for(count)
    mine = [number for number, thread in rig.handler.seen if thread == threading.get_ident()]
    assert len(mine) < MAX_DEALT
    assert [number for number, _ in rig.handler.seen] == list(range(count))


def test_a_time_that_an_engines_thread_brings_forward_is_kept(rig: Rig) -> None:
    def soon() -> None:
        rig.handler.state.wake_at = MonotonicClock().now() + 0.01

    rig.turns.post_and_drain((Tick(), soon))  # the driver's thread sleeps without a time
    rig.handler.wait_for(1)
    assert rig.handler.seen[0] == (None, rig.thread.ident)
    rig.handler.state.wake_at = None


def test_who_has_the_turn_is_known(rig: Rig) -> None:
    found: list[bool] = []
    assert not rig.turns.is_mine
    rig.turns.post_and_drain((Tick(), lambda: found.append(rig.turns.is_mine)))
    rig.turns.post((Tick(), lambda: found.append(rig.turns.is_mine)))
    rig.turns.post((Tick(), 1))
    rig.handler.wait_for(1)
    assert found == [True, True]
    assert not rig.turns.is_mine


def test_an_engines_thread_may_read_that_it_is_over(rig: Rig) -> None:
    def stop() -> None:
        rig.turns.post((None, None))

    rig.turns.post_and_drain((Tick(), stop))
    rig.thread.join(PATIENCE_S)
    assert not rig.thread.is_alive()
    assert rig.handler.is_closed
    late: list[Callable[[tuple[Event | None, Any]], None]] = [
        rig.turns.post,
        rig.turns.post_and_drain,
    ]
    for number, bring in enumerate(late):
        bring((Tick(), number))
    assert rig.handler.turned_away == [0, 1]


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_dealt_with_twice_among_many(rig: Rig, count: int) -> None:
    def write(writer: int) -> None:
        ways = (rig.turns.post, rig.turns.mailbox.put_quietly, rig.turns.post_and_drain)
        for number in range(writer, count, 4):
            ways[(number // 4) % 3]((Tick(), number))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    rig.handler.wait_for(count)
    order = [number for number, _ in rig.handler.seen if number is not None]
    assert sorted(order) == list(range(count))
    for writer in range(4):
        assert [n for n in order if n % 4 == writer] == list(range(writer, count, 4))
