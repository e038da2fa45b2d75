"""A save that fails anywhere leaves the old file as it was, and savers do not mix."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, load_index, save_index
from rag_accel.engines.retrieval.index import files


def _index(count: int) -> DocumentIndex:
    index = DocumentIndex(IndexSpec(4))
    index.add(
        [Document(str(number), f"of {count}") for number in range(count)], np.ones((count, 4))
    )
    return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a saved index of 3 documents."""
    path = tmp_path / "index"
    save_index(_index(3), path, "old")
    return path


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


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_failing_system_call_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, fail)
        with pytest.raises(type(error)):
            save_index(_index(5), path, "new")
    _check_old(path)


def test_saving_over_a_folder_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_index(_index(5), tmp_path / "folder", "new")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_process_killed_while_saving_leaves_the_old_file(path: Path, call: str) -> None:
    code = f"""
import os, signal, sys
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, save_index
from rag_accel.system import files
index = DocumentIndex(IndexSpec(4))
index.add([Document("a", "")], np.ones((1, 4)))
files.os.{call} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save_index(index, sys.argv[1], "new")
"""
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert len(load_index(path, fingerprint="old")) == 3


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


def test_of_concurrent_savers_one_wins_whole(path: Path) -> None:
    counts = range(1, 25)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda count: save_index(_index(count), path, str(count)), counts))
    loaded = load_index(path)
    assert len(loaded) in counts
    assert {document.text for document in loaded.get(["0"])} == {f"of {len(loaded)}"}
    assert files.read_header(path).fingerprint == str(len(loaded))
    assert os.listdir(path.parent) == [path.name]


def test_a_reader_beside_savers_always_finds_a_whole_index(path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(
            lambda: [save_index(_index(count), path, str(count)) for count in range(1, 40)]
        )
        while not saving.done():
            loaded = load_index(path)
            assert loaded.get(["0"])[0].text == f"of {len(loaded)}"
        saving.result()


def _check_old(path: Path) -> None:
    assert len(load_index(path, fingerprint="old")) == 3
    assert os.listdir(path.parent) == [path.name]
