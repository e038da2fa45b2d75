"""What a check found is trusted only as it was written, in its folder, of its model."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rag_accel.errors import ChunkFileError
from rag_accel.kv.verdicts import FUSED, CheckVerdict

MODEL, OTHER = "a" * 64, "b" * 64
FOUND = CheckVerdict(
    MODEL, "tiny", 0.95, 0.15, 0.97, 0.004, 30, 10, 1700000000.0, {"torch": "2.0", "x": "1"}
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def file(folder: Path) -> Path:
    return FUSED.write(folder, FOUND)


def reason(folder: Path) -> str:
    with pytest.raises(ChunkFileError) as refused:
        FUSED.read(folder, MODEL)
    assert FUSED.find(lambda: MODEL, [folder]) is None
    return refused.value.reason


def test_the_latest_of_a_model_is_read(folder: Path, file: Path) -> None:
    assert FUSED.read(folder, MODEL) == FOUND
    assert FUSED.read(folder, OTHER) is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    FUSED.write(folder, replace(FOUND, ratio=None))
    FUSED.write(folder, replace(FOUND, model=OTHER, ratio=0.3))
    assert FUSED.read(folder, MODEL) == replace(FOUND, ratio=None)


def test_it_passes_from_the_proposed_ratio_on() -> None:
    assert [FOUND.passes(used) for used in (0.05, 0.15, 0.3)] == [False, True, True]
    assert not replace(FOUND, ratio=None).passes(0.3)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace("0.15", "0.05"), "damaged"),
        (lambda text: text.replace("rag_accel.kv_check", "rag_accel.kv"), "foreign"),
        *((lambda text, other=other: other, "damaged") for other in ("", "{", "[]", "3", "{}")),
        (lambda text: "[" * 50_000, "damaged"),
        (lambda text: " " * 100_000, "damaged"),
    ],
)
def test_a_file_that_was_edited_is_refused(
    folder: Path, file: Path, edit: Callable[[str], str], said: str
) -> None:
    file.write_text(edit(file.read_text()))
    assert reason(folder) == said


def test_a_file_of_another_model_or_folder_is_refused(
    folder: Path, file: Path, tmp_path: Path
) -> None:
    shutil.copy(FUSED.write(folder, replace(FOUND, model=OTHER)), file)
    assert reason(folder) == "foreign"
    shutil.copy(FUSED.write(tmp_path / "theirs", replace(FOUND, ratio=0.0)), file)
    assert reason(folder) == "damaged"


@pytest.mark.parametrize(("version", "said"), [(0, "older"), (2, "newer")])
def test_a_file_of_another_version_is_not_trusted(folder: Path, version: int, said: str) -> None:
    replace(FUSED, version=version).write(folder, FOUND)
    assert reason(folder) == said


def test_a_link_is_not_followed(folder: Path, file: Path, tmp_path: Path) -> None:
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert FUSED.read(folder, MODEL) is None


def test_the_first_folder_that_has_one_counts(folder: Path, file: Path, tmp_path: Path) -> None:
    FUSED.write(tmp_path / "more", replace(FOUND, ratio=0.3))
    assert FUSED.find(lambda: MODEL, [tmp_path / "none", folder, tmp_path / "more"]) == FOUND


def test_a_model_is_not_identified_where_there_is_no_verdict(tmp_path: Path) -> None:
    def identity() -> str:
        raise AssertionError("all weights are read")

    assert FUSED.find(identity, [tmp_path, tmp_path / "none"]) is None
