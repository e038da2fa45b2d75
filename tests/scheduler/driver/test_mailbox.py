"""Messages are read in the order in which they came; quiet ones wake nobody and are seen soon."""

from __future__ import annotations

import threading
from queue import Empty

import pytest

from rag_accel.scheduler.driver.mailbox import MAX_QUIET, Mailbox, Message
from rag_accel.scheduler.messages import Tick

PATIENCE_S = 20.0


def message(number: int) -> Message:
    return Tick(), number


def test_loud_and_quiet_messages_keep_their_order() -> None:
    box = Mailbox()
    for number in range(10):
        (box.put if number % 3 else box.put_quietly)(message(number))
    assert [box.get_nowait()[1] for _ in range(len(box))] == list(range(10))
    with pytest.raises(Empty):
        box.get_nowait()


@pytest.mark.parametrize("timeout_s", [0.0, 0.001, 0.06])
def test_who_waits_is_told_of_a_message_or_waits_no_longer_than_asked(timeout_s: float) -> None:
    box = Mailbox()
    box.wait(timeout_s)
    box.put(message(1))
    box.wait()
    assert box.get_nowait() == message(1)
    box.wait(timeout_s)
    assert not len(box)


def test_a_message_that_wakes_no_thread_is_there_for_the_next_read() -> None:
    box = Mailbox()
    box.add(message(1))
    box.wait()
    assert box.get_nowait() == message(1)


class Reader:
    """Read a box in a thread until its end is asked for."""

    def __init__(self) -> None:
        self.box = Mailbox()
        self.seen: list[int] = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while True:
            self.box.wait()
            while len(self.box):
                number = self.box.get_nowait()[1]
                if number is None:
                    return
                with self.changed:
                    self.seen.append(number)
                    self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, PATIENCE_S)

    def close(self) -> None:
        self.box.put((None, None))
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def reader():
    made = Reader()
    yield made
    made.close()


def test_a_quiet_message_alone_is_seen_soon(reader: Reader) -> None:
    reader.box.put_quietly(message(0))
    reader.wait_for(1)
    reader.box.put(message(1))
    reader.box.put_quietly(message(2))
    reader.wait_for(3)


def test_a_quiet_message_wakes_a_reader_that_has_fallen_asleep(reader: Reader) -> None:
    for number in range(5):
        until = threading.Event()
        while not reader.box._is_asleep:  # pyright: ignore[reportPrivateUsage]
            until.wait(0.001)
        reader.box.put_quietly(message(number))
        reader.wait_for(number + 1)


def test_many_quiet_messages_are_not_left_waiting() -> None:
    box = Mailbox()
    for number in range(MAX_QUIET):
        box.put_quietly(message(number))
    assert box._unwoken.acquire(blocking=False)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("number", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_turned_round_among_many_writers(reader: Reader, number: int) -> None:
    def write(writer: int) -> None:
        for each in range(number // 4):
            put = reader.box.put_quietly if each % 7 else reader.box.put
            put(message(4 * each + writer))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    reader.wait_for(number)
    assert sorted(reader.seen) == list(range(number))
    for writer in range(4):
        assert [one for one in reader.seen if one % 4 == writer] == list(range(writer, number, 4))
