"""A folder of a test's own for verdicts; traces stay the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_accel.engines.llm.local.reuse import unchecked
from rag_accel.kv import verdicts


def give_folders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give verdicts a folder, and have warnings said again."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(verdicts, "user_cache", lambda: path)
    monkeypatch.setattr(unchecked, "_warned", set[tuple[str, str]]())
