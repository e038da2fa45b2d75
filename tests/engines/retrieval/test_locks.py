"""Who waits for whom at a read-write lock."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from interrupting import Interrupt, interrupted, points, request_interrupt

from rag_accel.engines.retrieval.index.locks import IndexLock
from rag_accel.errors import ConfigError
from rag_accel.system.locks import _living

WAIT_S = 30.0


def _inside(lock: IndexLock, side: str, call: Callable[[], object]) -> None:
    """Make a call while holding one side of a lock."""
    if side == "reading":
        with lock.reading():
            call()
        return
    with lock.changing():
        lock.writing(call)


class _Held:
    """Hold one side of a lock in a thread of its own until told to let go."""

    def __init__(self, lock: IndexLock, side: str) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(lock, side))
        self._thread.start()

    def _hold(self, lock: IndexLock, side: str) -> None:
        with suppress(Interrupt):
            _inside(lock, side, self._stay)

    def _stay(self) -> None:
        self.inside.set()
        self._leave.wait(WAIT_S)

    def interrupt(self) -> None:
        request_interrupt(self._thread.ident or 0)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(WAIT_S)


@contextmanager
def _held(lock: IndexLock, *sides: str) -> Iterator[list[_Held]]:
    holders = [_Held(lock, side) for side in sides]
    try:
        yield holders
    finally:
        for holder in holders:
            holder.leave()


def test_readers_share() -> None:
    with _held(IndexLock(), "reading", "reading") as readers:
        assert all(reader.inside.wait(WAIT_S) for reader in readers)


def test_a_writer_waits_for_every_reader() -> None:
    lock = IndexLock()
    with _held(lock, "reading", "reading") as readers:
        assert all(reader.inside.wait(WAIT_S) for reader in readers)
        with _held(lock, "writing") as (writer,):
            readers[0].leave()
            assert not writer.inside.wait(0.05)
            readers[1].leave()
            assert writer.inside.wait(WAIT_S)


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_a_writer_keeps_all_other_threads_out(side: str) -> None:
    lock = IndexLock()
    with _held(lock, "writing") as (writer,):
        assert writer.inside.wait(WAIT_S)
        with _held(lock, side) as (other,):
            assert not other.inside.wait(0.05)
            writer.leave()
            assert other.inside.wait(WAIT_S)


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock = IndexLock()
    with _held(lock, "reading") as (first,):
        assert first.inside.wait(WAIT_S)
        with _held(lock, "writing") as (writer,):
            assert not writer.inside.wait(0.05)
            with _held(lock, "reading") as (late,):
                assert not late.inside.wait(0.05)
                first.leave()
                assert writer.inside.wait(WAIT_S)
                assert not late.inside.is_set()
                writer.leave()
                assert late.inside.wait(WAIT_S)


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_an_error_inside_lets_go(side: str) -> None:
    lock = IndexLock()

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        _inside(lock, side, fail)
    assert _is_free(lock)


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_an_interrupt_anywhere_lets_go(side: str) -> None:
    lock = IndexLock()

    def use() -> None:
        _inside(lock, side, lambda: None)

    count = points(use)
    errors: list[object] = []  # kept, and with them every frame
    for first in range(1, count + 1):
        errors += [interrupted(use, first), interrupted(use, first, first + 1)]
        assert _is_free(lock)
    assert all(errors)
    assert count > 5


def test_an_interrupt_while_waiting_lets_go() -> None:
    lock = IndexLock()
    for side, waiting in itertools.product(["reading", "writing"], ["reading", "writing"]):
        if side == waiting == "reading":
            continue
        with _held(lock, side) as (holder,):
            assert holder.inside.wait(WAIT_S)
            with _held(lock, waiting) as (waiter,):
                assert not waiter.inside.wait(0.05)
                waiter.interrupt()
                holder.leave()
        assert _is_free(lock)


@pytest.mark.parametrize("outer", ["reading", "writing"])
@pytest.mark.parametrize("inner", ["reading", "writing"])
def test_only_a_reader_may_come_again(outer: str, inner: str) -> None:
    lock, calls = IndexLock(), []

    def again() -> None:
        _inside(lock, inner, lambda: calls.append(inner))

    if outer == inner == "reading":
        _inside(lock, outer, again)
        assert calls
    else:
        with pytest.raises(ConfigError, match="from within"):
            _inside(lock, outer, again)
    assert _is_free(lock)


def test_a_reader_comes_again_past_a_waiting_writer() -> None:
    lock = IndexLock()
    with lock.reading():
        writer = _Held(lock, "writing")
        assert not writer.inside.wait(0.05)
        with lock.reading():
            pass
    writer.leave()


def test_locks_of_a_thing_that_is_gone_are_forgotten() -> None:
    locks = [IndexLock() for _ in range(20)]
    references = set(map(weakref.ref, locks))
    assert references <= _living
    locks.clear()
    gc.collect()
    assert all(reference() is None for reference in references)
    assert all(reference() is not None for reference in _living)


def _is_free(lock: IndexLock) -> bool:
    """Tell whether another thread can write."""
    with _held(lock, "writing") as (writer,):
        return writer.inside.wait(WAIT_S)
