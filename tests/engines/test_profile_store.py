"""What was measured comes back from disk, and nothing else does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rag_accel.engines.measuring import Measurements, ProfileStore
from rag_accel.errors import ConfigError

MEASURED = Measurements(((1, 0.25), (2, 0.3), (8, 1.125)))


def stored(directory: Path) -> Path:
    (path,) = directory.glob("*.json")
    return path


def test_what_was_kept_is_found_by_another_store(tmp_path: Path) -> None:
    ProfileStore(tmp_path / "new" / "folder", "here").keep("a model", MEASURED)
    again = ProfileStore(tmp_path / "new" / "folder", "here")
    assert again.find("a model") == MEASURED
    assert again.find("another model") is None
    assert ProfileStore(tmp_path / "new" / "folder", "elsewhere").find("a model") is None


def test_a_file_says_what_it_is_of(tmp_path: Path) -> None:
    ProfileStore(tmp_path, "two cores").keep("a model", MEASURED)
    said = json.loads(stored(tmp_path).read_text())
    assert said["engine"] == "a model"
    assert said["machine"] == "two cores"
    assert said["max_batch"] == MEASURED.max_batch


def test_measuring_again_replaces_what_was_there(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path, "here")
    store.keep("a model", MEASURED)
    newer = Measurements(((1, 1.0), (4, 2.0)))
    store.keep("a model", newer)
    assert store.find("a model") == newer
    assert stored(tmp_path)


def _said(**changed: Any) -> str:
    whole = {"format": 1, "items_and_seconds": [[1, 0.5], [2, 0.75]]}
    return json.dumps(whole | changed)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        _said(format=2),
        _said(items_and_seconds=[[1, 0.5]]),
        _said(items_and_seconds=[[2, 0.5], [1, 0.5]]),
        _said(items_and_seconds=[[0, 0.5], [1, 0.5]]),
        _said(items_and_seconds=[[1, -0.5], [2, 0.5]]),
        _said(items_and_seconds=[[1, float("nan")], [2, 0.5]]),
        _said(items_and_seconds=[[1, "fast"], [2, 0.5]]),
        _said(items_and_seconds=None),
        _said(items_and_seconds=[[float("inf"), 0.5], [2, 0.5]]),
        _said(items_and_seconds=[[1, 0.5], [10**400, 0.5]]),
        _said(items_and_seconds=[[1, 10**400], [2, 0.5]]),
        "[" * 100_000,
        '{"format": ' * 100_000,
        '{"format": 1, "items_and_seconds": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=lambda content: content[-60:],
)
def test_a_damaged_file_counts_as_missing(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProfileStore(tmp_path, "here")
    store.keep("a model", MEASURED)
    stored(tmp_path).write_text(content)
    with caplog.at_level(logging.WARNING):
        assert store.find("a model") is None
    assert "cannot be used" in caplog.text
    store.keep("a model", MEASURED)
    assert store.find("a model") == MEASURED


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"profile_dir=.*file.*a directory that can be made"):
        ProfileStore(tmp_path / "file", "here")


def test_a_directory_that_goes_away_costs_the_file_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProfileStore(tmp_path / "gone", "here")
    (tmp_path / "gone").rmdir()
    with caplog.at_level(logging.WARNING):
        store.keep("a model", MEASURED)
    assert "cannot be stored" in caplog.text
    assert store.find("a model") is None
