"""Wait for what other threads bring about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that other threads bring about; fail if they do not."""
    until = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < until, f"still waiting for: {what}"
        time.sleep(0.001)
