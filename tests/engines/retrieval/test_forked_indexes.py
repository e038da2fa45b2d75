"""An index that a child inherits while other threads use it answers and can be changed there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec
from rag_accel.engines.retrieval.index.locks import (
    IndexLock,
    _after_in_parent,
    _before_fork,
)
from rag_accel.system.locks import RenewedLock

WAIT_S = 60.0

FORKING = Path(__file__).parent / "forking.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.mark.parametrize("forks", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_a_child_forked_while_others_search_and_change_can_do_both(
    kind: IndexKind, forks: int
) -> None:
    command = [sys.executable, str(FORKING), kind, str(forks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0] * forks, done.stderr


def test_a_fork_waits_for_a_change_between_two_states_and_holds_off_the_next() -> None:
    lock = IndexLock()
    touched, leave, waits, written = (threading.Event() for _ in range(4))

    def touch() -> None:
        touched.set()
        leave.wait(WAIT_S)

    def fork() -> None:
        waits.set()
        _before_fork()
        assert leave.is_set()
        writer.start()
        assert not written.wait(0.05)
        _after_in_parent()
        assert written.wait(WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        writer = threading.Thread(target=_write, args=(lock, written.set))
        touching = pool.submit(_write, lock, touch)
        assert touched.wait(WAIT_S)
        forking = pool.submit(fork)
        assert waits.wait(WAIT_S)
        leave.set()
        for one in (touching, forking):
            one.result(WAIT_S)
        writer.join(WAIT_S)


def test_a_fork_from_within_a_write_waits_for_nothing() -> None:
    lock, done = IndexLock(), list[str]()

    def fork() -> None:
        _before_fork()
        _after_in_parent()
        done.append("forked")

    _write(lock, fork)
    _write(lock, lambda: done.append("written"))
    assert done == ["forked", "written"]


def test_what_a_thread_holds_is_free_in_a_child(kind: IndexKind) -> None:
    index, renewed = DocumentIndex(IndexSpec(1, kind=kind)), RenewedLock()
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with index.reading(), renewed.lock:
            held.set()
            leave.wait(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        try:
            assert held.wait(WAIT_S)
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                with renewed.lock:
                    index.add([Document("a", "")], [[1]])
                os._exit(len(index.search([[1]], 9)[0]) - 1)
            assert os.waitpid(pid, 0)[1] == 0
        finally:
            leave.set()
        holding.result(WAIT_S)


def _write(lock: IndexLock, call: Callable[[], object]) -> None:
    with lock.changing():
        lock.writing(call)
