"""Give each test an accelerator that must be empty when it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from idle_accelerators import soon_idle

from rag_accel import Accelerator
from rag_accel.adoption.remote_stores import SharingGain

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with Accelerator(strict=True) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}


@pytest.fixture(autouse=True)
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all searches that overlap share calls, faster or not."""
    monkeypatch.setattr(SharingGain, "shares", lambda self: True)
