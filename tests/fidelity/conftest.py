"""Give the tests of this room tiny language models, its kit, and a cache folder of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "engines" / "llm"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rag_accel"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny language model and its tokenizer."""
    from fake_runner import tokenizer
    from tiny_chat import model

    folder = tmp_path_factory.mktemp("tiny model")
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
