"""What ``rag-accel run`` does to an interpreter before and until a framework is imported."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rag_accel.cli.run import STARTUP, python_options

NOTHING = "rag-accel: nothing was accelerated: "
#: what is said of a program that has imported a framework and called nothing of it
UNCALLED = f"{NOTHING}no model, retriever, store or reranker was called\n"

#: says whether the process is accelerated
SAY = (
    "import sys; identity = sys.modules.get('rag_accel.interception.identity');"
    " print('accelerated:', bool(identity and identity.open_blocks()))"
)


def run(*line: str | Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program by the command line; modules in ``first`` are found before all others."""
    environment = dict(os.environ)
    if first is not None:
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(first), environment.get("PYTHONPATH")))
        )
    command = [sys.executable, "-m", "rag_accel.cli", "run", *map(str, line)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def written(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# What is imported ---------------------------------------------------------------------------------


def test_an_interpreter_without_a_framework_loads_what_it_loads_plainly() -> None:
    listing = "import sys; print(sorted(sys.modules))"
    plain = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    fast = run("-c", listing)
    # There is a ``sitecustomize`` now, and the module built into Python that ends it.
    added = set(ast.literal_eval(fast.stdout)) - set(ast.literal_eval(plain.stdout))
    assert added <= {"sitecustomize", "atexit"}


@pytest.mark.processes
@pytest.mark.parametrize("name", ["statistics", "yaml", "numpy", "ctypes"])
def test_modules_beside_the_script_win(tmp_path: Path, name: str) -> None:
    written(tmp_path, "WHOSE = 'the program'", f"{name}.py")
    done = run(written(tmp_path, f"import {name}; print({name}.WHOSE)"))
    assert done.stdout == "the program\n"


@pytest.mark.processes
def test_a_module_that_ours_would_need_is_the_programs_with_a_framework_too(
    tmp_path: Path,
) -> None:
    written(tmp_path, "WHOSE = 'the program'", "numpy.py")
    done = run(written(tmp_path, "import langchain_core, numpy; print(numpy.WHOSE)"))
    assert (done.returncode, done.stdout) == (0, "the program\n")
    assert done.stderr.startswith("rag-accel: the program runs plainly: ")
    assert done.stderr.count("\n") == 1


def test_a_file_of_our_packages_name_is_not_run(tmp_path: Path) -> None:
    written(tmp_path, "print('theirs runs')", "rag_accel.py")
    written(tmp_path, f"import langchain_core\n{SAY}", "program.py")
    command = [sys.executable, "-P", "-m", "rag_accel.cli", "run", "-m", "program"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("accelerated: True\n", UNCALLED)


@pytest.mark.processes
def test_another_environments_python_prints_nothing(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True, with_pip=False)
    written(tmp_path, "", "langchain_core.py")
    program = written(tmp_path, "import langchain_core; print('ran')")
    state = {"PYTHONPATH": STARTUP, "_RAG_ACCEL_RUN": "1:langchain_core"}
    done = subprocess.run(
        [str(tmp_path / "other" / "bin" / "python"), str(program)],
        capture_output=True,
        text=True,
        env=state,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


# When it is switched on ---------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(
    "program",
    [
        "import langchain_core",
        "from langchain_core.language_models import FakeListChatModel",
        "import langgraph.graph",
        "import langchain_rag_accel",
        "import langchain_rag_accel.auto",
        "import importlib.util; assert importlib.util.find_spec('langchain_core')\n"
        "import langchain_core",
        "import threading, importlib\n"
        "threads = [threading.Thread(target=importlib.import_module, args=('langchain_core',))"
        " for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]",
    ],
)
def test_the_import_of_a_framework_switches_on(tmp_path: Path, program: str) -> None:
    done = run("-W", "error", written(tmp_path, f"{program}\n{SAY}"))
    assert (done.stdout, done.stderr) == ("accelerated: True\n", UNCALLED)


@pytest.mark.processes
def test_the_loader_of_the_framework_and_the_finders_are_the_plain_ones(tmp_path: Path) -> None:
    program = (
        "import sys, langchain_core as it, llama_index.core, neo4j_graphrag\n"
        "print(type(it.__loader__), vars(it.__loader__), it.__spec__.loader is it.__loader__)\n"
        "print([getattr(one, '__name__', type(one).__name__) for one in sys.meta_path])"
    )
    path = written(tmp_path, program)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert run(path).stdout == plain.stdout


@pytest.mark.processes
def test_forked_children_are_accelerated_once_they_import_a_framework(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        f"if not os.fork():\n    import langchain_core\n    {SAY}\n"
        "    sys.stdout.flush(); sys.exit()\n"
        "os.wait()"
    )
    done = run(written(tmp_path, program))
    assert done.stdout == "accelerated: True\n"
    assert done.stderr.count(NOTHING) == 1  # of the program's own process


# What is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-Es", "-BI"])
def test_an_option_that_keeps_python_from_it_is_named(option: str) -> None:
    done = run(option, "-c", "print('ran')")
    assert done.stdout == "ran\n"
    assert done.stderr.startswith("rag-accel: nothing is accelerated: -")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "letters"),
    [
        (["a.py", "-I"], ""),
        (["-m", "a", "-I"], "m"),
        (["-mI"], "m"),
        (["-c", "-I"], "c"),
        (["-X", "dev", "-I", "a.py"], "XI"),
        (["-Xdev", "-I"], "XI"),
        (["-W", "-I", "a.py"], "W"),
        (["-WI", "a.py"], "W"),
        (["--check-hash-based-pycs", "-I", "-S"], "S"),
        (["-", "-I"], ""),
        (["-uB", "a.py"], "uB"),
    ],
)
def test_what_follows_the_program_is_no_option_of_pythons(line: list[str], letters: str) -> None:
    assert "".join(python_options(line)) == letters


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('mine')",
        pytest.param("import not_there_at_all", marks=pytest.mark.processes),
    ],
)
def test_a_sitecustomize_that_raises_takes_nothing_away(tmp_path: Path, text: str) -> None:
    written(tmp_path, text, "sitecustomize.py")
    done = run("-c", f"import langchain_core; {SAY}", first=tmp_path)
    assert done.stdout.endswith("accelerated: True\n")
    assert "Error in sitecustomize" in done.stderr


def test_a_program_that_closes_its_errors_ends_as_it_does_plainly() -> None:
    done = run("-c", "import sys; sys.stderr.close(); print('ran'); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "ran\n", "")


# The finder ---------------------------------------------------------------------------------------


class Startup:
    """The start-up module under another name, and what it would have switched on."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.came: list[str] = []

    def finder(self, *names: str) -> Any:
        """Return an installed finder that waits for these."""
        found = self.module.FrameworkImports(list(names), False)
        found.install()
        return found


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> Iterator[Startup]:
    """Give the start-up module; the finders of this process are restored."""
    name = "startup_under_test"
    spec = importlib.util.spec_from_file_location(name, f"{STARTUP}/sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("_RAG_ACCEL_RUN", raising=False)
    finders, path = list(sys.meta_path), list(sys.path)
    spec.loader.exec_module(module)
    made = Startup(module)
    monkeypatch.setattr(module, "_switch_on", made.came.append)
    yield made
    sys.meta_path[:], sys.path[:] = finders, path


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the name of a module that can be imported."""
    name = "a_framework_to_wait_for"
    written(tmp_path, "STATE = 1", f"{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_the_finder_leaves_with_the_last_module(startup: Startup, framework: str) -> None:
    finder = startup.finder("never_imported", framework)
    assert importlib.import_module(framework).STATE == 1
    assert startup.came == [framework]
    assert finder in sys.meta_path
    assert finder.find_spec(framework) is None
    finder = startup.finder(framework)  # imported already
    assert startup.came == [framework, framework]
    assert finder not in sys.meta_path


def test_an_import_that_fails_is_waited_for_again(
    startup: Startup, framework: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "1 / 0", f"{framework}.py")
    startup.finder(framework)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(framework)
    assert startup.came == []
    path.write_text("STATE = 2222")
    importlib.invalidate_caches()
    assert importlib.import_module(framework).STATE == 2222
    assert startup.came == [framework]


def test_a_loader_of_many_modules_runs_the_others_plainly(
    startup: Startup, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfMany:
        """A loader that several modules share, as those of an archive do."""

        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            module.STATE = module.__name__

    loader = OfMany()

    class Finder:
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            known = name in (framework, "its_neighbour")
            return ModuleSpec(name, loader) if known else None  # type: ignore[arg-type]

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    finder = startup.finder(framework)
    assert finder.find_spec(framework).loader is loader
    neighbour = importlib.import_module("its_neighbour")
    monkeypatch.delitem(sys.modules, "its_neighbour")
    assert (neighbour.STATE, startup.came) == ("its_neighbour", [])
    imported = importlib.import_module(framework)
    assert framework == imported.STATE
    assert startup.came == [framework]
    assert vars(loader) == {}
