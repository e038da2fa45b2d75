"""Let the tests of this room share ``server_harness``; leave no thread and no error of ours."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))  # tiny language models


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
def no_error_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the scheduler, or a callback of a future, had to survive an error."""
    yield
    for phase in ("setup", "call"):
        errors = [one for one in caplog.get_records(phase) if one.levelno >= logging.ERROR]
        assert [one.getMessage() for one in errors] == []


@pytest.fixture(autouse=True)
def loops_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let asyncio look for calls from wrong threads and for coroutines nobody awaited."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
