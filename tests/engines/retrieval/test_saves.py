"""A file holds one whole index, whatever interrupts a save, whoever saves or reads beside it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric, load_index, save_index
from rag_accel.engines.retrieval.index import files
from rag_accel.errors import IndexFileError
from rag_accel.system import files as system_files

#: saves nine documents as often as it is told, and waits for a line before a call of ``os``
SAVER = """
import os, sys
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, save_index
from rag_accel.system import files
path, times, moment = sys.argv[1:]
index = DocumentIndex(IndexSpec(4))
index.add([Document(str(number), "of 9") for number in range(9)], np.ones((9, 4)))
call = getattr(os, moment, None)
def wait(*arguments):
    print("waiting", flush=True)
    sys.stdin.readline()
    return call(*arguments)
if call is not None:
    setattr(files.os, moment, wait)
for _ in range(int(times)):
    save_index(index, path, "9")
"""

at_each_moment = pytest.mark.parametrize("moment", ["fsync", "replace"])


def _index(count: int) -> DocumentIndex:
    index = DocumentIndex(IndexSpec(4))
    documents = [Document(str(number), f"of {count}", {"of": count}) for number in range(count)]
    index.add(documents, np.ones((count, 4)))
    return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a saved index of 3 documents, alone in its folder."""
    path = tmp_path / "index"
    save_index(_index(3), path, "old")
    return path


def _loaded(path: Path) -> int:
    """Return how many documents a file has, all of one index."""
    (row,) = (loaded := load_index(path)).search(np.ones((1, 4)), 99)
    assert [hit.document.id for hit in row] == [str(number) for number in range(len(loaded))]
    assert {hit.document.text for hit in row} == {f"of {len(loaded)}"}
    return len(loaded)


def _check_old(path: Path) -> None:
    assert len(load_index(path, fingerprint="old")) == 3
    assert os.listdir(path.parent) == [path.name]


def _saver(path: Path, times: int = 1, moment: str = "") -> subprocess.Popen[str]:
    """Start a process that saves, and wait for it to come to its moment."""
    command = [sys.executable, "-c", SAVER, str(path), str(times), moment]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    if moment:
        assert started.stdout is not None
        assert started.stdout.readline() == "waiting\n"
    return started


def _end(saver: subprocess.Popen[str]) -> None:
    """Let a process that saves go on to its end."""
    _, errors = saver.communicate("go on\n")
    assert saver.returncode == 0, errors


# A save that fails ------------------------------------------------------------------------------


class _FullDisk:
    """Write to a file until the disk is full."""

    def __init__(self, file: Any, writes: int) -> None:
        self._file, self._left = file, writes

    def write(self, data: bytes) -> int:
        if not self._left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= 1
        return self._file.write(data)


@pytest.mark.parametrize("writes", [0, 1, 2, 4, 6, 7, 8])
def test_a_full_disk_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    # 5 documents make 9 writes: preamble, 5 lines, vectors, footer, tail.
    write_parts = files.write_parts
    monkeypatch.setattr(
        files, "write_parts", lambda file, *rest: write_parts(_FullDisk(file, writes), *rest)
    )
    with pytest.raises(OSError, match="No space left"):
        save_index(_index(5), path, "new")
    _check_old(path)


@at_each_moment
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_failing_system_call_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(files.os, moment, fail)
        with pytest.raises(type(error)):
            save_index(_index(5), path, "new")
    _check_old(path)


def test_saving_over_a_folder_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_index(_index(5), tmp_path / "folder", "new")
    assert os.listdir(tmp_path) == ["folder"]


@at_each_moment
def test_a_killed_saver_leaves_the_old_file_and_the_next_one_removes_its_own(
    path: Path, moment: str
) -> None:
    for _ in range(2):
        saver = _saver(path, moment=moment)
        saver.send_signal(signal.SIGKILL)
        saver.communicate()
        assert len(load_index(path, fingerprint="old")) == 3
        assert len(os.listdir(path.parent)) == 2  # the second removes what the first one left
    save_index(_index(5), path, "")
    assert os.listdir(path.parent) == ["index"]


def test_the_data_is_on_disk_before_the_name_changes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record(name: str) -> Callable[..., None]:
        call = getattr(os, name)

        def recorded(*arguments: Any) -> None:
            calls.append(name)
            call(*arguments)

        return recorded

    for name in ("fsync", "replace"):
        monkeypatch.setattr(files.os, name, record(name))
    save_index(_index(5), path, "new")
    assert calls == ["fsync", "replace", "fsync"]


# Several savers ---------------------------------------------------------------------------------


def test_of_concurrent_savers_one_wins_whole(path: Path) -> None:
    counts = range(1, 25)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda count: save_index(_index(count), path, str(count)), counts))
    assert _loaded(path) in counts
    assert files.read_header(path).fingerprint == str(_loaded(path))
    assert os.listdir(path.parent) == [path.name]


def test_a_reader_beside_savers_always_finds_a_whole_index(path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(
            lambda: [save_index(_index(count), path, str(count)) for count in range(1, 40)]
        )
        while not saving.done():
            _loaded(path)
        saving.result()


@at_each_moment
def test_what_another_process_is_writing_stays(path: Path, moment: str) -> None:
    saver = _saver(path, moment=moment)
    save_index(_index(5), path, "")
    assert len(os.listdir(path.parent)) == 2
    assert _loaded(path) == 5
    _end(saver)
    assert _loaded(path) == 9
    assert os.listdir(path.parent) == ["index"]


def test_processes_that_save_at_once_leave_one_whole_file(path: Path) -> None:
    savers = [_saver(path, times=40) for _ in range(2)]
    for _ in range(40):
        save_index(_index(5), path, "")
        assert _loaded(path) in (5, 9)
    for saver in savers:
        _end(saver)
    assert os.listdir(path.parent) == ["index"]


def test_files_that_only_look_alike_stay(tmp_path: Path) -> None:
    names = [".index.settings.tmp", ".index.tmp", ".index.abcdefgh.rag.tmp.bak", "index.old"]
    names += [".other.abcdefgh.rag.tmp", ".index.b.abcdefgh.rag.tmp"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".index.abcdefgh.rag.tmp").symlink_to(tmp_path / "index.old")
    save_index(_index(5), tmp_path / "index", "")
    assert {*names, "index", ".index.abcdefgh.rag.tmp"} == set(os.listdir(tmp_path))
    assert (tmp_path / "index.old").read_text() == "mine"


def test_a_file_taken_for_a_left_one_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = system_files.lock_file, []

    def lock_late(descriptor: int) -> None:
        if not taken:  # another saver comes in between
            taken.append(descriptor)
            system_files._remove_left(tmp_path / "index")
            assert os.listdir(tmp_path) == []
        lock(descriptor)

    monkeypatch.setattr(system_files, "lock_file", lock_late)
    save_index(_index(5), tmp_path / "index", "")
    assert taken
    assert os.listdir(tmp_path) == ["index"]
    assert _loaded(tmp_path / "index") == 5


def test_files_are_saved_where_locks_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks on this file system")

    (tmp_path / ".index.abcdefgh.rag.tmp").write_text("perhaps somebody writes")
    monkeypatch.setattr(system_files.fcntl, "flock", refuse)
    save_index(_index(5), tmp_path / "index", "")
    monkeypatch.setattr(system_files, "fcntl", None)
    save_index(_index(5), tmp_path / "index", "")
    assert sorted(os.listdir(tmp_path)) == [".index.abcdefgh.rag.tmp", "index"]


# A file that is read ----------------------------------------------------------------------------


def test_an_index_that_serves_stays_whole_and_the_next_load_sees_the_new_file(path: Path) -> None:
    index = load_index(path)
    _end(_saver(path))
    assert [hit.document.text for hit in index.search(np.ones((1, 4)), 99)[0]] == ["of 3"] * 3
    assert _loaded(path) == 9


def test_a_file_replaced_while_it_is_read_gives_the_old_index_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.read_parts

    def replace_first(*arguments: Any) -> Any:
        _end(_saver(path))
        return read(*arguments)

    monkeypatch.setattr(files, "read_parts", replace_first)
    assert _loaded(path) == 3
    monkeypatch.undo()
    assert len(load_index(path, fingerprint="9")) == 9


def test_a_loaded_index_knows_the_fields_of_its_documents(path: Path) -> None:
    index = load_index(path)
    assert index.fields == {"of"}
    index.add([Document("d", "", {"year": 1, "of": "me"})], np.ones((1, 4)))
    index.delete(["d"])
    assert index.fields == {"of", "year"}


def test_a_file_of_another_metric_is_refused_by_name(path: Path) -> None:
    assert len(load_index(path, metric=Metric.INNER_PRODUCT)) == 3
    with pytest.raises(
        IndexFileError, match=r"found metric inner_product; valid: metric l2"
    ) as caught:
        load_index(path, metric=Metric.L2)
    assert caught.value.where == str(path)
