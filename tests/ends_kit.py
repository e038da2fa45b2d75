"""What tests of many rooms need to see things through to their end: threads, children, waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test after which a thread of ours still runs."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 10
    for thread in threading.enumerate():
        if thread.name.startswith("rag-accel") and thread not in before:
            thread.join(max(0.0, until - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} was left behind"


@pytest.fixture(autouse=True)
def loops_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let asyncio look for calls from wrong threads and for coroutines nobody awaited."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")


def in_thread(target: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run something in a thread; the list gets what it returns or raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(target())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def wait_for(is_so: Callable[[], object]) -> None:
    """Wait for something that others bring about; fail if they do not."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended may wait for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
