"""What a check found is trusted only as it was written, in its folder, of its model."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from rag_accel.errors import ChunkFileError
from rag_accel.kv.reuse_check import REUSE_CHECKS, ReuseCheckResult

MODEL, OTHER = "a" * 64, "b" * 64
FOUND = ReuseCheckResult(
    MODEL, "tiny", 0.95, 0.15, 0.97, 0.004, 30, 10, 1700000000.0, {"torch": "2.0", "x": "1"}
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def file(folder: Path) -> Path:
    return REUSE_CHECKS.write(folder, FOUND)


def reason(folder: Path) -> str:
    with pytest.raises(ChunkFileError) as refused:
        REUSE_CHECKS.read(folder, MODEL)
    assert REUSE_CHECKS.find(lambda: MODEL, [folder]) is None
    return refused.value.reason


def test_what_was_written_is_read(folder: Path, file: Path) -> None:
    assert REUSE_CHECKS.read(folder, MODEL) == FOUND
    assert REUSE_CHECKS.read(folder, OTHER) is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_latest_of_a_model_counts(folder: Path, file: Path) -> None:
    REUSE_CHECKS.write(folder, replace(FOUND, ratio=None))
    REUSE_CHECKS.write(folder, replace(FOUND, model=OTHER, ratio=0.3))
    found = REUSE_CHECKS.read(folder, MODEL)
    assert found is not None
    assert found.ratio is None


@pytest.mark.parametrize(
    ("proposed", "used", "passes"),
    [(0.15, 0.15, True), (0.15, 0.3, True), (0.15, 0.05, False), (0.0, 0.0, True)],
)
def test_it_passes_from_the_proposed_ratio_on(proposed: float, used: float, passes: bool) -> None:
    assert replace(FOUND, ratio=proposed).passes(used) is passes
    assert not replace(FOUND, ratio=None).passes(used)


def test_a_file_that_was_edited_is_damaged(folder: Path, file: Path) -> None:
    file.write_text(file.read_text().replace("0.15", "0.05"))
    assert reason(folder) == "damaged"


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", "[" * 50_000, " " * 100_000])
def test_a_file_that_is_no_verdict_is_damaged(folder: Path, file: Path, content: str) -> None:
    file.write_text(content)
    assert reason(folder) == "damaged"


def test_a_file_of_another_model_is_foreign(folder: Path, file: Path) -> None:
    other = REUSE_CHECKS.write(folder, replace(FOUND, model=OTHER))
    shutil.copy(other, file)
    assert reason(folder) == "foreign"


def test_a_file_of_another_format_is_foreign(folder: Path, file: Path) -> None:
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "format": "rag_accel.kv"}))
    assert reason(folder) == "foreign"


def test_a_file_of_another_folder_is_not_trusted(folder: Path, file: Path, tmp_path: Path) -> None:
    theirs = REUSE_CHECKS.write(tmp_path / "theirs", replace(FOUND, ratio=0.0))
    shutil.copy(theirs, file)
    assert reason(folder) == "damaged"


@pytest.mark.parametrize(("version", "said"), [(0, "older"), (2, "newer")])
def test_a_file_of_another_version_is_not_trusted(folder: Path, version: int, said: str) -> None:
    replace(REUSE_CHECKS, version=version).write(folder, FOUND)
    assert reason(folder) == said


def test_a_link_is_not_followed(folder: Path, file: Path, tmp_path: Path) -> None:
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert REUSE_CHECKS.read(folder, MODEL) is None


def test_the_first_folder_that_has_one_counts(folder: Path, file: Path, tmp_path: Path) -> None:
    REUSE_CHECKS.write(tmp_path / "more", replace(FOUND, ratio=0.3))
    assert REUSE_CHECKS.find(lambda: MODEL, [tmp_path / "none", folder, tmp_path / "more"]) == FOUND


def test_a_model_is_not_identified_where_there_is_no_verdict(tmp_path: Path) -> None:
    def identity() -> str:
        raise AssertionError("all weights are read")

    assert REUSE_CHECKS.find(identity, [tmp_path, tmp_path / "none"]) is None
