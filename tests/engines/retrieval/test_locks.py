"""Who waits for whom at a read-write lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rag_accel.engines.retrieval.locks import ReadWriteLock

WAIT_S = 30.0


class _Held:
    """Hold one side of a lock in a thread of its own until told to let go."""

    def __init__(self, lock: ReadWriteLock, side: str) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(lock, side))
        self._thread.start()

    def _hold(self, lock: ReadWriteLock, side: str) -> None:
        with lock.reading() if side == "reading" else lock.writing():
            self.inside.set()
            self._leave.wait(WAIT_S)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(WAIT_S)


@contextmanager
def _held(lock: ReadWriteLock, *sides: str) -> Iterator[list[_Held]]:
    holders = [_Held(lock, side) for side in sides]
    try:
        yield holders
    finally:
        for holder in holders:
            holder.leave()


def test_readers_share() -> None:
    with _held(ReadWriteLock(), "reading", "reading") as readers:
        assert all(reader.inside.wait(WAIT_S) for reader in readers)


def test_a_writer_waits_for_every_reader() -> None:
    lock = ReadWriteLock()
    with _held(lock, "reading", "reading") as readers:
        assert all(reader.inside.wait(WAIT_S) for reader in readers)
        with _held(lock, "writing") as (writer,):
            readers[0].leave()
            assert not writer.inside.wait(0.05)
            readers[1].leave()
            assert writer.inside.wait(WAIT_S)


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_a_writer_keeps_everybody_out(side: str) -> None:
    lock = ReadWriteLock()
    with _held(lock, "writing") as (writer,):
        assert writer.inside.wait(WAIT_S)
        with _held(lock, side) as (other,):
            assert not other.inside.wait(0.05)
            writer.leave()
            assert other.inside.wait(WAIT_S)


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock = ReadWriteLock()
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
    lock = ReadWriteLock()

    def fail() -> None:
        with lock.reading() if side == "reading" else lock.writing():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with _held(lock, "writing") as (writer,):
        assert writer.inside.wait(WAIT_S)
