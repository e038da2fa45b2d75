"""``rag-accel batch``: rows run once, and what is finished stays, whatever ends the command."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_accel.cli import main
from rag_accel.cli.batch import in_order
from rag_accel.cli.progress import show_progress
from rag_accel.system.files import held_lock

ROOT = Path(__file__).parents[2]
APP = """
import threading, time
from pathlib import Path
lock = threading.Lock()
number = 3
def note(row):
    with lock, open("calls", "a", errors="replace") as file:
        file.write(f"{row}\\n")
def answer(row):
    note(row)
    if row == "refused" and not Path("mended").exists():
        raise LookupError("there is none")
    if row == "exit":
        raise SystemExit(3)
    return {"long": row * 4000} if row == "much" else (row, {"of": row})
async def awaited(row):
    return answer(row)
def slow(row):
    time.sleep(0.05)
    return answer(row)
class Answers:
    def given(self, row):
        return answer(row)
answers = Answers()
"""
#: the command as a process of its own, also where tests run in the background and SIGINT is ignored
COMMAND = """
import signal, sys
from rag_accel.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
Batch = Callable[..., int]


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """Yield the command over rows that are JSON values, in a folder with an app."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("batch_app.py").write_text(APP)

    def run(rows: list[Any], *options: str, app: str = "answer", out: str = "results") -> int:
        write_rows(rows)
        return main(["batch", f"batch_app:{app}", "rows.jsonl", "--out", out, *options])

    yield run
    sys.modules.pop("batch_app", None)


def write_rows(rows: list[Any]) -> None:
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def results() -> dict[int, Any]:
    """Return what each row has; no row has two lines."""
    lines = [json.loads(line) for line in Path("results").read_text().splitlines()]
    assert len({line["row"] for line in lines}) == len(lines)
    return {line["row"]: line.get("output", line.get("error")) for line in lines}


def calls() -> list[str]:
    return Path("calls").read_text().splitlines()


@pytest.mark.parametrize("app", ["answer", "awaited", "answers.given"])
def test_equal_inputs_run_once_and_those_with_one_beginning_after_each_other(
    batch: Batch, app: str
) -> None:
    assert batch(["b 1", "a 1", "b 2", "a 1", "ü\ud800"], "--concurrency", "1", app=app) == 0
    assert calls()[:3] == ["a 1", "b 1", "b 2"]
    found = results()
    assert found.pop(5) == ["ü\ud800", {"of": "ü\ud800"}]
    assert found == {n: [row, {"of": row}] for n, row in enumerate(["b 1", "a 1", "b 2", "a 1"], 1)}


def test_fields_that_rows_share_count_before_those_that_differ() -> None:
    rows = [{"id": number, "text": text} for number, text in enumerate("xyxyxy")]
    assert in_order(rows) == [0, 2, 4, 1, 3, 5]
    assert in_order([*rows, "x", [1]])[:1] == [6 + 1]


def test_a_field_of_each_row_is_its_input(batch: Batch) -> None:
    rows = [{"id": 1, "q": "one"}, {"id": 2, "q": "one"}]
    assert batch(rows, "--input", "q") == 0
    assert results() == {1: ["one", {"of": "one"}], 2: ["one", {"of": "one"}]}
    assert calls() == ["one"]


def test_a_failed_row_ends_only_itself_and_runs_again(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(["fine", "refused", "exit"]) == 1
    assert results()[2] == {"class": "LookupError", "message": "there is none"}
    assert results()[3] == {"class": "SystemExit", "message": "3"}
    said = capsys.readouterr()
    assert said.out.startswith("3 rows: 1 done, 0 of them before, 2 failed, in ")
    assert "first, row 3: SystemExit: 3" in said.out
    Path("mended").touch()
    assert batch(["fine", "refused", "exit", "fine"]) == 1  # with a row that came later
    assert calls() == ["exit", "fine", "refused", "exit", "refused"]
    assert {n for n, found in results().items() if isinstance(found, list)} == {1, 2, 4}
    assert "4 rows: 3 done, 2 of them before, 1 failed" in capsys.readouterr().out


def test_other_rows_in_place_of_finished_ones_are_refused(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(["one", "two"]) == 0
    before = Path("results").read_bytes()
    for rows in (["one", "another"], ["one"]):
        assert batch(rows) == 2
        assert "row 2, whose input is another one in rows.jsonl" in capsys.readouterr().err
    assert Path("results").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ('"a"\n{"a"\n', {}, "rows.jsonl, line 2; found no JSON"),
        ("[NaN]\n", {}, "line 1; found no JSON: NaN"),
        ("\n", {}, "there are no rows"),
        (None, {}, "a file cannot be read; at rows.jsonl"),
        ('{"q": 1}\n"q"\n', {"--input": "q"}, "line 2; found no such field"),
        ('"a"\n', {"--price": "1"}, "at --price; found '1'"),
        ('"a"\n', {"--price": "nan,1"}, "at --price"),
        ('"a"\n', {"--concurrency": "0"}, "at --concurrency; found 0"),
        ('"a"\n', {"--out": "calls"}, "calls, line 1; found another text"),
        ('"a"\n', {"--out": "odd"}, "odd, line 1; found another text"),
        ('"a"\n', {"--out": "none/results"}, "none/results; found No such file"),
        ('"a"\n', {"--out": "."}, "found no file"),
        ('"a"\n', {"app": "number"}, "found builtins.int"),
        ('"a"\n', {"app": "nothing"}, "has no attribute 'nothing'"),
    ],
)
def test_bad_input_is_told_by_name(
    batch: Batch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    options: dict[str, str],
    words: str,
) -> None:
    Path("calls").write_text("precious")
    Path("odd").write_text('{"row": [], "input": ""}\n')
    if text is not None:
        Path("rows.jsonl").write_text(text)
    app = options.pop("app", "answer")
    line = ["batch", f"batch_app:{app}", "rows.jsonl", "--out", "results"]
    assert main([*line, *(word for option in options.items() for word in option)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("rag-accel: [RA100] ")
    assert words in told
    assert calls() == ["precious"]


def test_two_processes_do_not_write_one_file(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    with held_lock(Path(".results.lock"), 0.0):
        assert batch(["one"]) == 2
    assert "another process writes these results" in capsys.readouterr().err
    assert batch(["one"]) == 0


def test_a_full_disk_is_told_and_the_same_command_goes_on(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["one", "much", "two"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, limits[1]))
    try:
        assert batch(rows, "--concurrency", "1") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "results cannot be written; at " in (told := capsys.readouterr().err)
    assert "run the same command again" in told
    assert set(results()) < {1, 2, 3}  # whole lines only
    assert batch(rows) == 0
    assert set(results()) == {1, 2, 3}


def started(rows: int) -> subprocess.Popen[str]:
    """Start the command over so many slow rows, four at once; return it once some have ended."""
    write_rows([f"row {number}" for number in range(rows)])
    line = [sys.executable, "-c", COMMAND, "batch", "batch_app:slow", "rows.jsonl"]
    folders = [ROOT, ROOT / "integrations", ROOT / "adapters", ROOT / "demo"]
    process = subprocess.Popen(
        [*line, "--out", "results", "--concurrency", "4"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )
    deadline = time.monotonic() + 60
    while not Path("results").exists() or Path("results").read_bytes().count(b"\n") < 8:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def test_a_kill_repeats_at_most_what_was_in_flight(batch: Batch) -> None:
    process = started(rows=100)
    process.kill()
    process.communicate()
    with Path("results").open("ab") as file:
        file.write(b'{"row": 7, "inp')  # a line that was torn
    finished = len(Path("results").read_bytes().splitlines()) - 1
    assert 8 <= finished < 100
    assert batch([f"row {number}" for number in range(100)]) == 0
    assert set(results()) == set(range(1, 101))
    assert len(calls()) <= 104
    assert len(set(calls())) == 100


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(batch: Batch) -> None:
    process = started(rows=100)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    told = errors.splitlines()[-1]
    found = len(results())
    assert told.startswith(f"stopped; {found} rows have results: run the same command again")
    assert "Traceback" not in errors
    assert 8 <= found < 100


def test_progress_has_lines_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    show = show_progress("row")
    for done in (2, 3, 4):
        show(done, 4)
    assert capsys.readouterr().err.splitlines() == [
        "2 of 4 rows",
        "3 of 4 rows, 0 s left",
        "4 of 4 rows",
    ]


def test_a_terminal_has_a_bar_that_begins_where_rows_were_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = show_progress("row")
    for done in (2, 4):
        show(done, 4)
    assert "4/4" in capsys.readouterr().err
