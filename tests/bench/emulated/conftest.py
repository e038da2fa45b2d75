"""Share a device in virtual time, and the helpers of the tests of language models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.emulated.device import EmulatedDevice
from bench.emulated.table import H100_LIKE_1B

TESTS = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))  # virtual time
sys.path.append(str(TESTS / "engines" / "llm"))  # work, and its outputs


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    """Yield a device whose seconds pass at once."""
    from device_harness import VirtualTime

    time = VirtualTime()
    with EmulatedDevice(H100_LIKE_1B, clock=time, wait=time.wait_until) as made:
        yield made
