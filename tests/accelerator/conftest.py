"""Let the tests of this room share ``accel_harness``; leave no thread; debug all loops."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


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
