"""A page of the cookbook that keeps what it prints beside it still prints that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COOKBOOK = Path(__file__).parents[1] / "cookbook"
KEPT = sorted(COOKBOOK.glob("[0-9]*.txt"))


def _named(kept: Path) -> str:
    return kept.stem


@pytest.mark.parametrize("kept", KEPT, ids=_named)
def test_a_page_prints_what_is_kept(kept: Path, tmp_path: Path) -> None:
    page = kept.with_suffix(".py")
    printed = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", page],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    again = f"python cookbook/{page.name} > cookbook/{kept.name}"
    assert printed.splitlines() == kept.read_text().splitlines(), f"if this is meant: {again}"
    assert "The same result: False" not in printed


def test_there_is_a_kept_text() -> None:
    assert KEPT
