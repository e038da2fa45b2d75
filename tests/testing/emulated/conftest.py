"""Share a device in virtual time, and the helpers of the tests of language models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_accel.testing.emulated.device import EmulatedDevice
from rag_accel.testing.emulated.waiting import VirtualTime

sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))  # work, and its outputs


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    """Yield a device whose seconds pass at once."""
    time = VirtualTime()
    with EmulatedDevice("h100_like_8b", clock=time, waiter=time) as made:
        yield made
