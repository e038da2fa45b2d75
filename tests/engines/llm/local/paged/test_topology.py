"""Traces are kept by what they depend on, for this user alone, and not tried again in vain."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rag_accel.cli import main
from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import CompileError, ProgramFailedError
from rag_accel.engines.llm.local.paged import topology
from rag_accel.engines.llm.local.paged.graph import TraceError
from rag_accel.engines.llm.local.paged.topology import (
    kept_traces,
    read_trace,
    remove_traces,
    traced,
)

DAY_S = 86400.0
Convert = Callable[[Path], None]


def spec(number: int) -> dict[str, Any]:
    """Return what a trace depends on."""
    return {"config": {"vocab_size": 8, "hidden_size": 4, "number": number}}


def write(folder: Path) -> None:
    """Leave what the child leaves."""
    for name in (GRAPH, "model.bin"):
        (folder / name).write_text("traced")


class Child:
    """What stands for the child process; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.work: Convert = write

    def __call__(self, program: str, folder: Path, told: Mapping[str, Any], size: int) -> None:
        self.calls += 1
        self.work(folder)

    def fail(self, error: Exception) -> None:
        """Raise this from now on."""

        def work(folder: Path) -> None:
            raise error

        self.work = work


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Child()
    monkeypatch.setattr(topology, "convert", made)
    return made


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_trace_is_made_once(child: Child) -> None:
    assert traced(spec(1)) == traced(spec(1))
    assert traced(spec(1)).read_text() == "traced"
    assert child.calls == 1
    assert topology.is_kept(spec(1))
    assert not topology.is_kept(spec(2))


def _cut(folder: Path) -> None:
    (folder / GRAPH).write_text("tra")


def _take_away(folder: Path) -> None:
    (folder / "model.bin").unlink()


def _replace_by_a_pipe(folder: Path) -> None:
    (folder / GRAPH).unlink()
    os.mkfifo(folder / GRAPH)


def _replace_by_a_link(folder: Path) -> None:
    (folder / GRAPH).rename(folder / "elsewhere")
    (folder / GRAPH).symlink_to(folder / "elsewhere")


def _take_the_digest_away(folder: Path) -> None:
    (folder / "digest").unlink()


def _replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


DAMAGES = (
    _cut,
    _take_away,
    _replace_by_a_pipe,
    _replace_by_a_link,
    _take_the_digest_away,
    _replace_by_a_file,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__.strip("_"))
def test_a_damaged_trace_is_made_again_once(
    damage: Callable[[Path], None], child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    folder = traced(spec(1)).parent
    damage(folder)
    assert not topology.is_kept(spec(1))
    for _ in range(2):
        assert traced(spec(1)).read_text() == "traced"
    assert child.calls == 2
    (said,) = caplog.messages
    assert str(folder) in said
    assert "made again" in said


def test_a_damaged_trace_that_cannot_be_made_again_stays_unused(child: Child) -> None:
    _cut(traced(spec(1)).parent)
    child.fail(CompileError("too little memory"))
    with pytest.raises(CompileError, match="memory"):
        traced(spec(1))
    assert not topology.is_kept(spec(1))
    child.work = write
    assert traced(spec(1)).read_text() == "traced"
    assert child.calls == 3


def test_a_trace_of_no_use_is_refused_by_name(child: Child) -> None:
    def refuse(path: Path) -> str:
        raise TraceError("no such layer")

    named = rf"{topology.folder_of(spec(1))} cannot be used: no such layer \(.*cache purge --traces"
    with pytest.raises(CompileError, match=named):
        read_trace(spec(1), refuse)
    with pytest.raises(CompileError, match=r"no such layer \(found before; .*purge --traces"):
        read_trace(spec(1), refuse)
    assert child.calls == 1
    assert main(["cache", "purge", "--traces"]) == 0
    assert read_trace(spec(1), Path.read_text) == "traced"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_lock_that_is_no_file_is_named(child: Child, kind: str) -> None:
    folder = topology.folder_of(spec(1))
    folder.parent.mkdir(parents=True, mode=0o700)
    lock = folder.with_name(f".{folder.name}.lock")
    (Path.mkdir if kind == "folder" else os.mkfifo)(lock)
    with pytest.raises(OSError, match=rf"{lock} is .*: remove it"):
        traced(spec(1))


def test_nobody_else_may_enter_the_folder(child: Child) -> None:
    traced(spec(1))
    assert topology.kept_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", ["link", "file", "mode", "owner"])
def test_a_folder_that_others_could_change_is_refused(
    child: Child, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = topology.kept_folder()
    folder.parent.mkdir()
    if way == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif way == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if way == "mode" else 0o700)
    if way == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for use in (lambda: traced(spec(1)), kept_traces, remove_traces):
        with pytest.raises(OSError, match=r"the folder of traced models .* is .*: remove it"):
            use()
    assert child.calls == 0


def test_a_program_that_crashed_is_not_run_again_for_a_week(child: Child) -> None:
    child.fail(ProgramFailedError("it ended with signal 11"))
    with pytest.raises(CompileError, match=r"signal 11$"):
        traced(spec(1))
    with pytest.raises(
        CompileError, match=r"signal 11 \(found before; .* purge --traces forgets it\)"
    ):
        traced(spec(1))
    assert child.calls == 1
    assert topology.is_kept(spec(1))  # nothing traces it in the background either
    (found,) = kept_traces()
    assert found.refused == "it ended with signal 11"
    age(found.path, topology.REFUSED_S + 1)
    child.work = write
    assert traced(spec(1)).is_file()
    assert child.calls == 2


def test_what_may_go_well_next_time_is_tried_again(child: Child) -> None:
    child.fail(CompileError("too little memory"))
    for _ in range(2):
        with pytest.raises(CompileError, match="memory"):
            traced(spec(1))
    assert child.calls == 2
    assert kept_traces() == []


def test_an_interrupted_trace_leaves_nothing(child: Child) -> None:
    def interrupt(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    child.work = interrupt
    with pytest.raises(KeyboardInterrupt):
        traced(spec(1))
    assert not [path for path in topology.kept_folder().iterdir() if path.suffix != ".lock"]
    child.work = write
    assert traced(spec(1)).is_file()


def test_the_least_lately_used_traces_go(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "MOST_TRACES", 3)
    for number in range(3):
        age(traced(spec(number)).parent, 10.0 - number)
    traced(spec(0))  # lately used
    traced(spec(3))
    assert [topology.is_kept(spec(number)) for number in range(4)] == [True, False, True, True]
    assert len(list(topology.kept_folder().iterdir())) == 6  # with a lock each


def test_traces_that_nobody_used_for_long_go(child: Child) -> None:
    age(traced(spec(1)).parent, topology.UNUSED_S + 1)
    traced(spec(2))
    assert not topology.is_kept(spec(1))


def test_a_cache_that_cannot_be_written_is_named(child: Child) -> None:
    topology.user_cache().touch()
    with pytest.raises(OSError, match="rag_accel"):
        traced(spec(1))


def test_the_command_lists_and_forgets(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    traced(spec(1))
    child.fail(ProgramFailedError("it ended with signal 11"))
    with pytest.raises(CompileError):
        traced(spec(2))
    age(next(trace.path for trace in kept_traces() if trace.refused is None), 2 * DAY_S)
    assert main(["cache", "list"]) == 0
    kept, refused, total = capsys.readouterr().out.splitlines()
    assert "refused: it ended with signal 11" in refused
    assert "trace, unused for 2.0 days" in kept
    assert total.startswith("2 traced models, ")
    assert main(["cache", "purge", "--traces"]) == 0
    assert capsys.readouterr().out == "2 traced models removed\n"
    assert kept_traces() == []
    assert list(topology.kept_folder().iterdir()) == []


def test_the_list_is_there_for_machines(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    kept = traced(spec(1)).parent
    assert main(["cache", "list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "kind": "trace",
        "name": kept.name,
        "refused": None,
        "bytes": sum(file.stat().st_size for file in kept.iterdir()),
        "unused_s": said["unused_s"],
    }


@pytest.mark.parametrize("option", ["--all", "--traces"])
def test_traces_are_removed_by_name_or_with_all(child: Child, option: str) -> None:
    traced(spec(1))
    assert main(["cache", "purge", option]) == 0
    assert kept_traces() == []


def test_a_folder_that_others_may_write_to_is_named(
    child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    traced(spec(1))
    topology.kept_folder().chmod(0o777)
    for verb in (["list"], ["purge", "--traces"]):
        assert main(["cache", *verb]) == 2
        assert "the traced models cannot be read" in capsys.readouterr().err
