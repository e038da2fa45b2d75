"""A folder stays usable when a process is killed that writes it with an engine of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kept_engines
import killed_engine
import pytest
from chunk_prompts import tokens
from kept_engines import Make, answer, engine_over, reused
from killed_engine import NUMBERED

pytestmark = pytest.mark.processes


make = kept_engines.make


def killed(folder: Path, moment: str) -> None:
    """Have a process write a folder, and kill it at a moment of its third state."""
    script = killed_engine.__file__
    paths = os.pathsep.join([str(Path(script).parent), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, script, str(folder), moment],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
    finally:
        child.kill()
        child.communicate()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"))


def left(folder: Path) -> list[str]:
    """Return the names of what killed writers have left."""
    return [one.name for one in folder.iterdir() if one.name.endswith(".tmp")]


@pytest.mark.parametrize(("moment", "count"), [("begun", 2), ("written", 2), ("kept", 3)])
def test_what_was_kept_is_used_and_the_rest_computed(
    make: Make, tmp_path: Path, moment: str, count: int
) -> None:
    folder = tmp_path / "kept"
    killed(folder, moment)
    assert len(files(folder)) == count
    engine = make()
    assert left(folder) == []
    plain = engine_over(tmp_path / "plain", kv_folder=None)
    found = [answer(engine, text) for text in NUMBERED]
    assert [one.text for one in found] == [answer(plain, text).text for text in NUMBERED]
    assert [reused(one) for one in found] == [
        tokens(text) if at < count else 0 for at, text in enumerate(NUMBERED)
    ]
    assert engine.counts["chunk_files_refused"] == 0
    plain.close()


def test_entries_damaged_beside_it_are_computed_again(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    killed(folder, "written")
    first, second, *_ = files(folder)
    first.write_bytes(first.read_bytes()[:-7])
    second.write_bytes(b"")
    engine = make()
    again = [reused(answer(engine, text)) for text in NUMBERED[:2]]
    assert again == [0, 0]
    assert engine.counts["chunk_files_refused"] == 2
    engine.close()
    engine = make()
    assert [reused(answer(engine, text)) for text in NUMBERED[:2]] == [
        tokens(text) for text in NUMBERED[:2]
    ]
