"""A folder that is made once is there whole or not at all, whoever wants it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from rag_accel.system.files import folder_made_once


def write(folder: Path) -> None:
    (folder / "weights").write_text("whole")


def test_is_made(tmp_path: Path) -> None:
    folder = folder_made_once(tmp_path / "deep" / "made", write)
    assert folder == tmp_path / "deep" / "made"
    assert (folder / "weights").read_text() == "whole"


def test_is_not_made_again(tmp_path: Path) -> None:
    folder_made_once(tmp_path / "made", write)
    folder_made_once(tmp_path / "made", lambda folder: pytest.fail("made a second time"))


def test_one_of_several_makes_it(tmp_path: Path) -> None:
    makers: list[Path] = []
    together = Barrier(4)

    def make(folder: Path) -> None:
        makers.append(folder)
        write(folder)

    def ask() -> str:
        together.wait(10)
        return (folder_made_once(tmp_path / "made", make) / "weights").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in [pool.submit(ask) for _ in range(4)]] == ["whole"] * 4
    assert len(makers) == 1


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder_made_once(tmp_path / "made", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]


def test_what_a_killed_maker_left_is_not_kept(tmp_path: Path) -> None:
    left: list[Path] = []
    folder_made_once(tmp_path / "made", left.append)
    (tmp_path / "made").rename(left[0])
    (left[0] / "half").write_text("half")
    folder = folder_made_once(tmp_path / "made", write)
    assert [path.name for path in folder.iterdir()] == ["weights"]
