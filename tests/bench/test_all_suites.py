from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from bench import all_suites, command
from bench.command import main
from bench.process_tree import run_tree
from bench.results import Row, SuiteResult, load, save

CODE = {"commit": "c0ffee", "is_dirty": False}
Run = Callable[[str, Namespace], SuiteResult | None]


class _Suites:
    """Three suites that find what a test says; ``ran`` are those that were run."""

    def __init__(self, result: SuiteResult) -> None:
        self.result = result
        self.here = {**result.environment, **CODE, "versions": {}, "variables": {}}
        self.ran: list[str] = []
        self.instead: dict[str, Run] = {}

    def run(self, name: str, arguments: Namespace) -> SuiteResult | None:
        self.ran.append(name)
        if name in self.instead:
            return self.instead[name](name, arguments)
        return self.found(name)

    def found(self, name: str) -> SuiteResult:
        environment = {**self.here, "duration_s": 12.4, "num_processes": 1}
        return replace(self.result, suite=name, environment=environment)


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch, result: SuiteResult) -> _Suites:
    made = _Suites(result)
    monkeypatch.setattr(command, "suite_names", lambda: ["demo", "http", "ray"])
    monkeypatch.setattr(all_suites, "run_suite", made.run)
    monkeypatch.setattr(all_suites, "read_environment", lambda _: made.here)
    # The command sets these where they are missing; here they go again.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    return made


def _table(text: str) -> dict[str, list[str]]:
    """Return the cells of each suite in a printed table."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("suite"))
    head = lines[start]
    starts = [head.index(name) for name in ("suite", "seconds", "state", "first")]
    cells = [
        [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        for line in lines[start + 1 : start + 4]
    ]
    return {name: rest for name, *rest in cells}


@pytest.mark.parametrize("exists", [True, False])
def test_every_suite_has_a_file_as_soon_as_it_has_ended(
    suites: _Suites, tmp_path: Path, exists: bool
) -> None:
    folder = tmp_path / "kept" / "here"
    if exists:
        folder.mkdir(parents=True)
    there: list[list[str]] = []

    def look(name: str, _: Namespace) -> SuiteResult:
        there.append(sorted(path.name for path in folder.iterdir()))
        return suites.found(name)

    suites.instead = dict.fromkeys(["demo", "http", "ray"], look)
    assert main(["all", "--quick", "--json", str(folder)]) == 0
    assert there == [[], ["demo.json"], ["demo.json", "http.json"]]
    assert load(folder / "ray.json") == [suites.found("ray")]


def test_the_table_says_what_became_of_every_suite(
    suites: _Suites, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (Row("hosted", "Ray is not installed", "missing", 1, None, 1),)
    suites.instead["ray"] = lambda name, _: replace(suites.found(name), rows=rows, ratios={})
    suites.instead["http"] = lambda *_: None
    assert main(["all", "--quick", "--json", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert _table(printed.out) == {
        "demo": ["0", "measured", "sample_p99_64 = 0.5"],
        "http": ["0", "failed", ""],
        "ray": ["0", "missing: Ray is not installed", ""],
    }
    assert "failed: http" in printed.err
    assert {path.name for path in tmp_path.iterdir()} == {"demo.json", "ray.json"}


def test_what_was_measured_of_the_same_code_is_not_measured_again(
    suites: _Suites, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["all", "--quick", "--json", str(tmp_path), "--resume"]
    suites.instead["http"] = lambda *_: None
    assert main(line) == 1
    suites.instead, suites.ran = {}, []
    capsys.readouterr()
    assert main(line) == 0
    assert suites.ran == ["http"]
    assert _table(capsys.readouterr().out) == {
        "demo": ["12", "kept", "sample_p99_64 = 0.5"],
        "http": ["0", "measured", "sample_p99_64 = 0.5"],
        "ray": ["12", "kept", "sample_p99_64 = 0.5"],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "decade"},
        {"is_dirty": True},
        {"cores": 64},
        {"quick": False},
        {"versions": {"numpy": "9"}},
    ],
)
def test_what_was_measured_of_something_else_is_measured_again(
    suites: _Suites, tmp_path: Path, change: dict[str, object]
) -> None:
    assert main(["all", "--json", str(tmp_path)]) == 0
    suites.ran = []
    suites.here |= change
    assert main(["all", "--json", str(tmp_path), "--resume"]) == 0
    assert suites.ran == ["demo", "http", "ray"]
    assert load(tmp_path / "ray.json") == [suites.found("ray")]


def test_files_that_hold_no_result_or_too_few_processes_are_measured_again(
    suites: _Suites, tmp_path: Path
) -> None:
    (tmp_path / "demo.json").write_text('{"suite"')
    save(tmp_path / "http.json", [suites.found("demo")])
    save(tmp_path / "ray.json", [suites.found("ray")])
    line = ["all", "--json", str(tmp_path), "--resume"]
    assert main(line) == 0
    assert suites.ran == ["demo", "http"]
    suites.ran = []
    assert main([*line, "--processes", "2"]) == 0
    assert suites.ran == ["demo", "http", "ray"]


@pytest.mark.parametrize("kind", ["kept", "kept.json"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_and_tells_what_there_is(
    suites: _Suites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    number: signal.Signals,
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(number)

    before = signal.getsignal(number)
    suites.instead["http"] = interrupted
    assert main(["all", "--json", str(tmp_path / kind)]) == 130
    assert signal.getsignal(number) is before
    assert suites.ran == ["demo", "http"]
    found = _table(capsys.readouterr().out)
    assert [state for _, state, _ in found.values()] == ["measured", "interrupted", "not run"]
    path = tmp_path / kind
    assert load(path if path.is_file() else path / "demo.json") == [suites.found("demo")]


#: Starts a process in a session of its own that says when it runs, and when it was left alone.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = "import time; print('runs', flush=True); time.sleep(60); print('was left alone')"
line, pipe = [sys.executable, "-c", child], open(sys.argv[1], "w")
subprocess.Popen(line, stdout=pipe, start_new_session=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc")
@pytest.mark.parametrize("end", [subprocess.TimeoutExpired("", 0), KeyboardInterrupt()])
def test_nothing_of_a_tree_outlives_its_limit_or_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said: list[TextIO] = []
    codes: list[int] = []

    class Waiting(subprocess.Popen):  # type: ignore[type-arg]
        """Is ended as soon as the process of its process runs, not after some time."""

        def wait(self, timeout: float | None = None) -> int:
            if not said:
                said.append(pipe.open(encoding="utf-8"))
                assert said[0].readline() == "runs\n"
                raise end
            codes.append(super().wait(timeout))
            return codes[-1]

    monkeypatch.setattr(subprocess, "Popen", Waiting)
    line = [sys.executable, "-c", STUBBORN, str(pipe)]
    if isinstance(end, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run_tree(line, tmp_path, limit_s=60, grace_s=0.01)
    else:
        assert run_tree(line, tmp_path, limit_s=60, grace_s=0.01) is None
    assert codes == [-signal.SIGKILL]
    with said[0]:  # it ends when all who could write are gone
        assert said[0].read() == ""
