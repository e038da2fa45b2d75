"""Threads are noted while they run, from any thread and whoever reads meanwhile."""

from __future__ import annotations

import threading

from rag_accel.scheduler.driver.ending import LivingThreads


def started(until: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=until.wait, args=(30.0,), daemon=True)
    thread.start()
    return thread


def test_a_thread_that_has_ended_is_forgotten_with_the_next_one() -> None:
    first_ends, second_ends = threading.Event(), threading.Event()
    noted = LivingThreads()
    first, second = started(first_ends), started(second_ends)
    noted.add(first)
    first_ends.set()
    first.join()
    noted.add(second)
    assert list(noted) == [second]
    second_ends.set()


def test_threads_may_be_noted_while_others_are_gone_through() -> None:
    ends = threading.Event()
    noted = LivingThreads()
    threads = [started(ends) for _ in range(3)]
    noted.add(threads[0])
    for _ in noted:
        noted.add(threads[1])
        noted.add(threads[2])
    assert set(noted) == set(threads)
    ends.set()
