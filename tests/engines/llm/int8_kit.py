"""Folders of a test's own for int8 weights and for verdicts; traces stay the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_accel.engines.llm.local.paged import int8_weights
from rag_accel.engines.llm.local.reuse import unchecked
from rag_accel.kv import verdicts


def give_folders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give int8 weights and verdicts a folder, and have warnings said again."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(int8_weights, "user_cache", lambda: path)
    monkeypatch.setattr(verdicts, "user_cache", lambda: path)
    monkeypatch.setattr(unchecked, "_warned", set[tuple[str, str]]())
