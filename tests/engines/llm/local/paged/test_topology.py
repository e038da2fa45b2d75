"""Traces are kept by what they depend on, for this user alone, and not tried again in vain."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_accel.cli import main
from rag_accel.engines.compiled.compile_process import CompileError, ProgramFailedError
from rag_accel.engines.llm.local.paged import topology
from rag_accel.engines.llm.local.paged.graph import TraceError
from rag_accel.engines.llm.local.paged.topology import (
    kept_traces,
    read_trace,
    remove_traces,
    traced,
)
from rag_accel.errors import ConfigError

DAY_S = 86400.0
TRACE = b"traced"
Convert = Callable[[Path], None]


def spec(number: int) -> dict[str, Any]:
    """Return what a trace depends on."""
    return {"config": {"vocab_size": 8, "hidden_size": 4, "number": number}}


def write(folder: Path) -> None:
    """Leave what the child leaves."""
    (folder / "trace").write_bytes(TRACE)


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


def only_file() -> Path:
    """Return the file of the only trace."""
    (found,) = kept_traces()
    return found.path


def test_a_trace_is_made_once(child: Child) -> None:
    assert traced(spec(1)) == traced(spec(1)) == TRACE
    assert child.calls == 1
    assert topology.is_kept(spec(1))
    assert not topology.is_kept(spec(2))


@pytest.mark.parametrize("way", ["cut", "pipe", "link"])
def test_a_damaged_trace_is_made_again_once(
    way: str, child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    traced(spec(1))
    file = only_file()
    if way == "cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.rename(file.with_name("elsewhere"))
        file.symlink_to("elsewhere") if way == "link" else os.mkfifo(file)
    assert not topology.is_kept(spec(1))
    assert traced(spec(1)) == traced(spec(1)) == TRACE
    assert child.calls == 2
    assert caplog.messages == [f"{file} is damaged, and made again"]


def test_a_damaged_trace_that_cannot_be_made_again_stays_unused(child: Child) -> None:
    traced(spec(1))
    only_file().write_text("tra")
    child.fail(CompileError("too little memory"))
    with pytest.raises(CompileError, match="memory"):
        traced(spec(1))
    assert not topology.is_kept(spec(1))
    child.work = write
    assert traced(spec(1)) == TRACE
    assert child.calls == 3


def test_a_trace_of_no_use_is_refused_by_name(child: Child) -> None:
    def refuse(trace: bytes) -> str:
        raise TraceError("no such layer")

    named = rf"{topology.kept_folder()} cannot be used: no such layer \(.*cache purge --traces"
    with pytest.raises(CompileError, match=named):
        read_trace(spec(1), refuse)
    with pytest.raises(CompileError, match=r"no such layer \(found before; .*purge --traces"):
        read_trace(spec(1), refuse)
    assert child.calls == 1
    assert main(["cache", "purge", "--traces"]) == 0
    assert read_trace(spec(1), bytes.decode) == "traced"


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
        with pytest.raises(ConfigError, match=r"no files can be kept in this folder; at .*/traces"):
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
    assert traced(spec(1)) == TRACE
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
    assert {path.name for path in topology.kept_folder().iterdir()} == {".secret", ".lock"}
    child.work = write
    assert traced(spec(1)) == TRACE


def test_the_least_lately_used_traces_go(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "TRACES", replace(topology.TRACES, most=3))
    for number in range(3):
        traced(spec(number))
        for trace in kept_traces():
            age(trace.path, 10.0)
    traced(spec(0))  # lately used
    traced(spec(3))
    assert [topology.is_kept(spec(number)) for number in range(4)] == [True, False, True, True]


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


def test_the_list_is_there_for_machines(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    traced(spec(1))
    kept = only_file()
    assert main(["cache", "list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "kind": "trace",
        "name": kept.stem,
        "refused": None,
        "bytes": kept.stat().st_size,
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
        assert "no files can be kept in this folder" in capsys.readouterr().err
