"""Share a device in virtual time, and the helpers of the tests of language models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.emulated.device import EmulatedDevice
from bench.emulated.waiting import VirtualTime

TESTS = Path(__file__).parents[2]
sys.path.append(str(TESTS / "engines" / "llm"))  # work, and its outputs
sys.path.append(str(TESTS / "accelerator"))  # graphs over lists


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    """Yield a device whose seconds pass at once."""
    time = VirtualTime()
    with EmulatedDevice("h100_like_8b", clock=time, waiter=time) as made:
        yield made
