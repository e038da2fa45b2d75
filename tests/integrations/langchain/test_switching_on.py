"""A whole process is accelerated by an import or by the command line, and runs as it did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: what is said of a program that ends without a framework
NOTHING = (
    "rag-accel: nothing was accelerated: this process never imported langchain_core or"
    " llama_index.core or neo4j_graphrag\n"
)

#: what is said of a process that has called one fake model
IDLE = (
    "rag-accel: acts: nothing; does not: FakeListChatModel, because no engine of this library"
    " computes what this class does; ChatRagAccel runs a local model, or calls the servers of a"
    " RemoteLLM\n"
)

#: a program that says what it was given and whether its model's calls were scheduled
PROGRAM = """
import sys
from langchain_core.language_models import FakeListChatModel

print(sys.argv[1:], __name__, sys.path[0])
print(FakeListChatModel(responses=["fine"]).invoke("how?").content)
from rag_accel.accelerator import default_accelerator

snapshot = default_accelerator().metrics.snapshot()
print("scheduled:", "FakeListChatModel" in str(snapshot))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def said(*line: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, *map(str, line)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def accelerated(*line: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the same by the command line."""
    return said("-m", "rag_accel.cli", "run", *line, **variables)


def test_a_program_run_by_the_command_line_is_scheduled(program: Path) -> None:
    plain, fast = said(program, "-a", "--b"), accelerated(program, "-a", "--b")
    assert (plain.returncode, fast.returncode) == (0, 0)
    assert (fast.stderr, plain.stderr) == (IDLE, "")
    assert fast.stdout == plain.stdout.replace("scheduled: False", "scheduled: True")
    assert "scheduled: True" in fast.stdout


@pytest.mark.processes
def test_a_module_is_run_as_well(program: Path) -> None:
    fast = accelerated("-m", "program", "x", PYTHONPATH=path_with(program.parent))
    assert "['x'] __main__" in fast.stdout
    assert "scheduled: True" in fast.stdout


@pytest.mark.processes
def test_what_a_program_starts_is_accelerated_too(program: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer.py"
    outer.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, {str(program)!r}], check=True)"
    )
    assert "scheduled: True" in accelerated(outer).stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("import sys; sys.exit(3)", NOTHING),
        ("raise SystemExit('no')", NOTHING),
        ("1 / 0", NOTHING),
        ("import os; os._exit(4)", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", ""),
        ("raise KeyboardInterrupt", NOTHING),
        ("x =", NOTHING),
    ],
)
def test_a_program_ends_as_it_does_plainly(tmp_path: Path, text: str, added: str) -> None:
    path = tmp_path / "ends.py"
    path.write_text(text)
    plain, fast = said(path), accelerated(path)
    assert (fast.returncode, fast.stdout, fast.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr + added,
    )


def test_a_program_that_is_not_there_is_pythons_error(tmp_path: Path) -> None:
    plain, fast = said(tmp_path / "none.py"), accelerated(tmp_path / "none.py")
    assert (fast.returncode, fast.stderr) == (plain.returncode, plain.stderr + NOTHING)
    assert fast.returncode == 2


def test_switched_off_it_runs_plainly(tmp_path: Path) -> None:
    fast = accelerated(importing(tmp_path), RAG_ACCEL="0")
    assert "scheduled: False" in fast.stdout
    assert fast.stderr == ""


def test_with_a_framework_that_is_not_understood_it_runs_plainly_and_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "langchain_core").mkdir()
    (tmp_path / "langchain_core" / "__init__.py").touch()
    path = tmp_path / "program.py"
    path.write_text("import langchain_core; print('ran')")
    fast = accelerated(path, PYTHONPATH=path_with(tmp_path))
    assert (fast.returncode, fast.stdout) == (0, "ran\n")
    assert "the program runs plainly" in fast.stderr
    assert "'langchain'" in fast.stderr
    assert fast.stderr.count("\n") == 1


def importing(folder: Path) -> Path:
    """Return the program with the import that switches acceleration on."""
    path = folder / "importing.py"
    path.write_text(f"import langchain_rag_accel.auto\n{PROGRAM}")
    return path


def test_an_import_is_enough(tmp_path: Path) -> None:
    done = said("-X", "dev", "-W", "error", importing(tmp_path))
    assert "scheduled: True" in done.stdout
    assert (done.returncode, done.stderr) == (0, IDLE)


def test_nothing_is_said_of_a_process_where_that_is_off(tmp_path: Path) -> None:
    done = accelerated(importing(tmp_path), RAG_ACCEL_SUMMARY="0")
    assert ("scheduled: True" in done.stdout, done.stderr) == (True, "")
    assert accelerated("-c", "", RAG_ACCEL_SUMMARY="0").stderr == ""


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("langchain_core.language_models.BaseChatModel._agenerate", "BaseChatModel._agenerate"),
        pytest.param(
            "langchain_core.runnables.config.var_child_runnable_config",
            "var_child_runnable_config",
            marks=pytest.mark.processes,
        ),
    ],
)
def test_a_private_name_that_is_gone_is_named_and_all_runs_plainly(
    tmp_path: Path, gone: str, named: str
) -> None:
    module, _, name = gone.rpartition(".")
    package, _, attribute = module.rpartition(".")
    path = tmp_path / "program.py"
    path.write_text(
        f"""
import importlib
try:
    owner = importlib.import_module({module!r})
except ImportError:
    owner = getattr(importlib.import_module({package!r}), {attribute!r})
import langchain_core.language_models, langchain_core.runnables
delattr(owner, {name!r})
import langchain_rag_accel
from langchain_rag_accel import accelerate, activate, explain
thing = object()
assert accelerate(thing) is thing
with activate():
    print(explain(thing))
"""
    )
    done = said(path)
    assert done.returncode == 0, done.stderr
    assert "runs plainly" in done.stdout
    assert "nothing is accelerated" in done.stderr
    assert named in done.stderr
