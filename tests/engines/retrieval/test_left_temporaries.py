"""What a killed saver left is removed by the next one, and nothing that anybody still writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, load_index, save_index
from rag_accel.system import files

SAVER = """
import os, signal, sys
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, save_index
from rag_accel.system import files
path, moment = sys.argv[1:]
index = DocumentIndex(IndexSpec(4))
index.add([Document("a", "saved by a process")], np.ones((1, 4)))
if moment == "repeatedly":
    for _ in range(40):
        save_index(index, path, "new")
    sys.exit()
call = getattr(os, moment)
def wait(*arguments):
    print("waiting", flush=True)
    sys.stdin.readline()
    return call(*arguments)
setattr(files.os, moment, wait)
save_index(index, path, "new")
"""

MOMENTS = ["fsync", "replace"]


def _index() -> DocumentIndex:
    index = DocumentIndex(IndexSpec(4))
    index.add([Document("a", "saved here")], np.ones((1, 4)))
    return index


def _saver(path: Path, moment: str) -> subprocess.Popen[str]:
    """Start a process that saves, and waits for it to come to this moment."""
    command = [sys.executable, "-c", SAVER, str(path), moment]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    if moment in MOMENTS:
        assert started.stdout is not None
        assert started.stdout.readline() == "waiting\n"
    return started


def _text(path: Path) -> str:
    return load_index(path).get(["a"])[0].text


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_killed_saver_left_is_removed_by_the_next(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "index"
    for _ in range(2):
        saver = _saver(path, moment)
        saver.send_signal(signal.SIGKILL)
        saver.communicate()
        assert len(os.listdir(tmp_path)) == 1  # the second saver removes what the first one left
    save_index(_index(), path, "")
    assert os.listdir(tmp_path) == ["index"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_another_process_is_writing_stays(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "index"
    saver = _saver(path, moment)
    save_index(_index(), path, "")
    assert len(os.listdir(tmp_path)) == 2
    assert _text(path) == "saved here"
    _, errors = saver.communicate("go on\n")
    assert saver.returncode == 0, errors
    assert _text(path) == "saved by a process"
    assert os.listdir(tmp_path) == ["index"]


def test_files_that_only_look_alike_stay(tmp_path: Path) -> None:
    names = [".index.settings.tmp", ".index.tmp", ".index.abcdefgh.rag.tmp.bak", "index.old"]
    names += [".other.abcdefgh.rag.tmp", ".index.b.abcdefgh.rag.tmp"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".index.abcdefgh.rag.tmp").symlink_to(tmp_path / "index.old")
    save_index(_index(), tmp_path / "index", "")
    assert {*names, "index", ".index.abcdefgh.rag.tmp"} == set(os.listdir(tmp_path))
    assert (tmp_path / "index.old").read_text() == "mine"


def test_a_file_taken_for_a_left_one_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = files.lock_file, []

    def lock_late(descriptor: int) -> None:
        if not taken:  # another saver comes in between
            taken.append(descriptor)
            files._remove_left(tmp_path / "index")
            assert os.listdir(tmp_path) == []
        lock(descriptor)

    monkeypatch.setattr(files, "lock_file", lock_late)
    save_index(_index(), tmp_path / "index", "")
    assert taken
    assert os.listdir(tmp_path) == ["index"]
    assert _text(tmp_path / "index") == "saved here"


def test_processes_that_save_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "index"
    savers = [_saver(path, "repeatedly") for _ in range(2)]
    for _ in range(40):
        save_index(_index(), path, "")
        assert _text(path) in ("saved here", "saved by a process")
    for saver in savers:
        _, errors = saver.communicate()
        assert saver.returncode == 0, errors
    assert os.listdir(tmp_path) == ["index"]


def test_files_are_saved_where_locks_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks on this file system")

    (tmp_path / ".index.abcdefgh.rag.tmp").write_text("perhaps somebody writes")
    monkeypatch.setattr(files.fcntl, "flock", refuse)
    save_index(_index(), tmp_path / "index", "")
    monkeypatch.setattr(files, "fcntl", None)
    save_index(_index(), tmp_path / "index", "")
    assert sorted(os.listdir(tmp_path)) == [".index.abcdefgh.rag.tmp", "index"]
