"""A folder keeps states within bytes and age, and is never trusted for more than it proves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from chunk_states import chunk_state, same_state

from rag_accel.errors import ConfigError
from rag_accel.kv import disk
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel

KEY, OTHER, THIRD = (bytes([at]) * 32 for at in range(3))
LABEL = ChunkLabel("tenant-of-mine", "Words that nobody else may read.")
#: more than one file's bytes and less than two's
ONE = 2000


class Times:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def times() -> Times:
    return Times()


def opened(folder: Path, times: Times, **options: Any) -> DiskStore:
    chosen = {"limit_bytes": 1 << 20, "model": "model", "dtype": torch.float32, **options}
    return DiskStore(folder, now=times, **chosen)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.suffix == ".kv")


def test_another_process_finds_what_was_kept(folder: Path, times: Times) -> None:
    assert opened(folder, times).put(KEY, chunk_state(1), LABEL)
    again = opened(folder, times)
    assert same_state(again.find(KEY), chunk_state(1))
    assert again.find(OTHER) is None


def test_files_and_their_names_tell_nothing(folder: Path, times: Times) -> None:
    opened(folder, times).put(KEY, chunk_state(), LABEL)
    (name,) = names(folder)
    content = (folder / name).read_bytes()
    for said in (LABEL.text.encode(), LABEL.namespace.encode(), KEY, KEY.hex().encode()):
        assert said not in content
    assert KEY.hex() not in name


def test_two_folders_name_a_key_differently(tmp_path: Path, times: Times) -> None:
    for at in ("one", "two"):
        opened(tmp_path / at, times).put(KEY, chunk_state(), LABEL)
    assert names(tmp_path / "one") != names(tmp_path / "two")


def test_folder_and_files_are_for_their_owner_alone(folder: Path, times: Times) -> None:
    opened(folder, times).put(KEY, chunk_state(), LABEL)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o077 for one in folder.iterdir()} == {0}


def test_a_folder_open_to_others_is_refused(folder: Path, times: Times) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="0755"):
        opened(folder, times)


def test_a_folder_that_is_a_link_is_refused(folder: Path, times: Times, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="link"):
        opened(folder, times)


def test_a_link_in_place_of_a_file_is_not_followed(
    folder: Path, times: Times, tmp_path: Path
) -> None:
    store = opened(folder, times)
    store.put(KEY, chunk_state(), LABEL)
    (name,) = names(folder)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert store.find(KEY) is None
    assert store.put(KEY, chunk_state(2), LABEL)
    assert not (folder / name).is_symlink()
    assert same_state(store.find(KEY), chunk_state(2))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path, times: Times) -> None:
    store = opened(folder, times)
    store.put(KEY, chunk_state(), LABEL)
    (name,) = names(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert store.find(KEY) is None
    assert store.put(KEY, chunk_state(2), LABEL)
    assert same_state(store.find(KEY), chunk_state(2))


def test_the_least_lately_used_file_goes_first(folder: Path, times: Times) -> None:
    store = opened(folder, times, limit_bytes=2 * ONE)
    store.put(KEY, chunk_state(0), LABEL)
    store.put(OTHER, chunk_state(1), LABEL)
    assert store.find(KEY) is not None
    store.put(THIRD, chunk_state(2), LABEL)
    assert [store.find(key) is not None for key in (KEY, OTHER, THIRD)] == [True, False, True]


def test_two_processes_keep_to_one_bound(folder: Path, times: Times) -> None:
    stores = [opened(folder, times, limit_bytes=3 * ONE) for _ in range(2)]
    for at in range(12):
        assert stores[at % 2].put(bytes([at]) * 32, chunk_state(at), LABEL)
        assert sum((folder / name).stat().st_size for name in names(folder)) <= 3 * ONE
    assert stores[0].find(bytes([11]) * 32) is not None


def test_what_is_larger_than_the_bytes_gives_up_nothing(folder: Path, times: Times) -> None:
    store = opened(folder, times, limit_bytes=ONE)
    store.put(KEY, chunk_state(), LABEL)
    assert not store.put(OTHER, chunk_state(tokens=50), LABEL)
    assert store.find(KEY) is not None
    assert store.counts.dropped == 1


def test_what_is_too_old_is_removed(folder: Path, times: Times) -> None:
    store = opened(folder, times, max_age_s=100.0)
    store.put(KEY, chunk_state(), LABEL)
    times.seconds += 50
    assert store.find(KEY) is not None
    times.seconds += 60  # being used does not make it younger
    assert store.find(KEY) is None
    assert names(folder) == []


def test_a_new_process_removes_what_is_too_old(folder: Path, times: Times) -> None:
    opened(folder, times).put(KEY, chunk_state(), LABEL)
    times.seconds += 1000
    opened(folder, times, max_age_s=100.0)
    assert names(folder) == []


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"model": "another"}, "foreign"), ({"dtype": torch.bfloat16}, "dtype")],
)
def test_what_is_of_another_model_is_a_counted_miss(
    folder: Path, times: Times, other: dict[str, Any], reason: str
) -> None:
    opened(folder, times).put(KEY, chunk_state(), LABEL)
    store = opened(folder, times, **other)
    assert store.find(KEY) is None
    assert store.counts.refused == {reason: 1}


def test_a_file_under_another_name_is_not_taken(folder: Path, times: Times) -> None:
    store = opened(folder, times)
    store.put(KEY, chunk_state(), LABEL)
    (folder / names(folder)[0]).rename(store.folder.path_of(store.folder.name(OTHER)))
    assert store.find(OTHER) is None
    assert store.counts.refused == {"foreign": 1}


def test_a_damaged_file_is_removed_and_written_again(folder: Path, times: Times) -> None:
    store = opened(folder, times)
    store.put(KEY, chunk_state(), LABEL)
    path = folder / names(folder)[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert store.find(KEY) is None
    assert names(folder) == []
    store.put(KEY, chunk_state(), LABEL)
    assert same_state(store.find(KEY), chunk_state())


def test_a_full_disk_keeps_nothing_and_breaks_nothing(
    folder: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, times)
    store.put(KEY, chunk_state(), LABEL)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_chunk", full)
        assert not store.put(OTHER, chunk_state(1), LABEL)
    assert store.counts.dropped == 1
    assert len(names(folder)) == 1
    assert same_state(store.find(KEY), chunk_state())


def test_what_a_killed_writer_left_is_removed(folder: Path, times: Times) -> None:
    store = opened(folder, times)
    (folder / ".name.kv.abcdefgh.rag.tmp").write_bytes(b"half")
    store.put(KEY, chunk_state(), LABEL)
    assert not list(folder.glob(".*.tmp"))


#: forks writers one after the other, and says when each has begun
WRITERS = """
import os, sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
from chunk_states import chunk_state
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel
torch.set_num_threads(1)
state = chunk_state(tokens=2000)
for _ in range(20):
    pid = os.fork()
    if not pid:
        options = dict(limit_bytes=1 << 24, model="model", dtype=torch.float32)
        store = DiskStore(Path({folder!r}), **options)
        print(os.getpid(), flush=True)
        for at in range(10**6):
            store.put(at.to_bytes(32, "little"), state, ChunkLabel())
    os.waitpid(pid, 0)
"""


@pytest.mark.processes
def test_writers_that_are_killed_leave_nothing_broken(folder: Path, times: Times) -> None:
    script = WRITERS.format(tests=str(Path(__file__).parent), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for at, line in enumerate(process.stdout):
            before = set(names(folder))
            while at % 2 and before.issuperset(names(folder)):
                time.sleep(0.001)  # every second one has written something
            os.kill(int(line), signal.SIGKILL)
        assert process.wait() == 0
    store = opened(folder, times, limit_bytes=1 << 24)
    assert names(folder)
    for at in range(len(names(folder)) + 4):
        store.find(at.to_bytes(32, "little"))
    assert store.counts.refused == {}
    assert not list(folder.glob(".*.tmp"))
