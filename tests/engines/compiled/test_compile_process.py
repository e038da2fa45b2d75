"""A program is run in a process of its own: isolated, bounded, and ended with this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rag_accel
from rag_accel.engines.compiled import compile_process
from rag_accel.engines.compiled.compile_process import CompileError, convert, private_folder

PATIENCE_S = 120.0


def program(folder: Path, body: str) -> str:
    """Write a program whose ``convert`` does this on one line, and return its path."""
    path = folder / "program.py"
    path.write_text(f"import os, pathlib, sys, time\ndef convert(folder, spec):\n    {body}\n")
    return str(path)


def test_a_program_is_given_its_folder_and_what_it_is_told(tmp_path: Path) -> None:
    path = program(tmp_path, "(folder / 'made').write_bytes(spec['word'].encode() * 2)")
    with private_folder() as folder:
        convert(path, folder, {"word": "graph"}, 0)
        assert (folder / "made").read_bytes() == b"graphgraph"
    assert not folder.exists()


def test_a_program_begins_when_its_input_is_written(tmp_path: Path) -> None:
    path = program(tmp_path, "(folder / 'weights').rename(folder / 'made')")
    with private_folder() as folder:
        convert(path, folder, {}, 0, lambda: (folder / "weights").write_bytes(b"w"))
        assert (folder / "made").read_bytes() == b"w"


def test_a_program_that_refuses_is_quoted(tmp_path: Path) -> None:
    for body, said in (
        ("raise ValueError('no such layer')", "^not traced: no such layer$"),
        ("raise MemoryError", "had too little memory$"),
        ("raise RuntimeError('std::bad_alloc')", "had too little memory$"),
        ("raise SystemExit(3)", "lost this one$"),
        ("print('a word', file=sys.stderr); os._exit(7)", "ended with status 7: a word$"),
    ):
        with pytest.raises(CompileError, match=said), private_folder() as folder:
            convert(program(tmp_path, body), folder, {}, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not traced: .*No such file"),
        ("def convert(", "not traced: .*never closed"),
        ("made = 1", "not traced: .*has no attribute 'convert'"),
    ],
    ids=["missing", "not Python", "without convert"],
)
def test_a_file_that_is_no_program_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "program.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CompileError, match=said), private_folder() as folder:
        convert(str(path), folder, {}, 0)


def test_a_program_imports_the_frame_that_runs_it(tmp_path: Path) -> None:
    line = "from rag_accel.engines.compiled import child_program as c; assert c.main, c.GRAPH"
    with private_folder() as folder:
        convert(program(tmp_path, line), folder, {}, 0)


@pytest.mark.parametrize("name", ["rag_accel.errors", "rag_accel.engines.batching"])
def test_a_program_imports_nothing_else_of_rag_accel(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [str(Path(rag_accel.__file__).parents[1])]
    monkeypatch.setattr(compile_process, "_library_path", lambda: installed)
    said = f"not traced: No module named '{name}'"
    with pytest.raises(CompileError, match=said), private_folder() as folder:
        convert(program(tmp_path, f"import {name}"), folder, {}, 0)


def test_no_module_of_the_user_is_seen_by_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = program(tmp_path, "import statistics; assert 'site' not in sys.modules")
    with private_folder() as folder:
        convert(path, folder, {}, 0)


def test_one_death_by_chance_is_forgiven(tmp_path: Path) -> None:
    once = "p = folder / 'once'; first = not p.exists(); p.touch(); first and os.abort()"
    with private_folder() as folder:
        convert(program(tmp_path, once), folder, {}, 0)


@pytest.mark.parametrize("number", [6, 9, 11])
def test_a_program_that_crashes_is_a_named_error(tmp_path: Path, number: int) -> None:
    path = program(tmp_path, f"os.kill(os.getpid(), {number})")
    said = f"^the process that compiles it ended with signal {number}$"
    with pytest.raises(CompileError, match=said), private_folder() as folder:
        convert(path, folder, {}, 0)
    assert not folder.exists()


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = program(tmp_path, "time.sleep(600)")
    with pytest.raises(CompileError, match="took longer than 0 s"), private_folder() as folder:
        convert(path, folder, {}, 0, limit_s=0.2)


def test_the_end_of_a_process_ends_its_child_at_once(tmp_path: Path) -> None:
    begun = f"pathlib.Path({str(tmp_path / 'begun')!r})"
    path = program(tmp_path, f"{begun}.touch(); time.sleep(600)")
    text = (
        "import pathlib, time\n"
        "from rag_accel.engines.compiled import compile_process\n"
        "from rag_accel.engines.compiled.compiled_forms import BackgroundTask\n"
        "def build():\n"
        "    with compile_process.private_folder() as folder:\n"
        f"        pathlib.Path({str(tmp_path / 'folder')!r}).write_text(str(folder))\n"
        f"        compile_process.convert({path!r}, folder, {{}}, 0)\n"
        "def call():\n"
        "    try: build()\n"
        "    except compile_process.CompileError: pass\n"
        "for _ in range(2): BackgroundTask(call).start()\n"
        f"while not {begun}.exists(): time.sleep(0.01)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert not Path((tmp_path / "folder").read_text()).exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_process_leaves_the_child_alone(tmp_path: Path) -> None:
    go = tmp_path / "go"
    path = program(tmp_path, f"while not os.path.exists({str(go)!r}): time.sleep(0.01)")
    failed: list[Exception] = []

    def call() -> None:
        try:
            with private_folder() as folder:
                convert(path, folder, {}, 0)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not compile_process._children.running:  # pyright: ignore[reportPrivateUsage]
        pass
    child = os.fork()
    if child == 0:
        compile_process.end_all()
        os._exit(0)
    os.waitpid(child, 0)
    go.touch()
    thread.join(PATIENCE_S)
    assert not failed
