"""Let the tests of this room share ``server_harness``; leave no thread and no error of ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import ends_kit
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))  # tiny language models

no_thread_is_left = ends_kit.no_thread_is_left
loops_in_debug_mode = ends_kit.loops_in_debug_mode


@pytest.fixture(autouse=True)
def no_error_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the scheduler, or a callback of a future, had to survive an error."""
    yield
    for phase in ("setup", "call"):
        errors = [one for one in caplog.get_records(phase) if one.levelno >= logging.ERROR]
        assert [one.getMessage() for one in errors] == []
