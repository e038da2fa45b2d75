"""The install lines of the documents bring whatever the examples under them need."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LLAMA_INDEX = (ROOT / "docs" / "llama_index.md").read_text()
INSTALL = re.compile(r"pip install (-e '\.\[[^`\n]*)")
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PAGES = {"README": README, "docs/llama_index": LLAMA_INDEX}
#: The lines of the README's table, by the package that is imported.
ROWS = {
    match[2]: match[1]
    for line in README.splitlines()
    if (match := re.match(r"\| \[.*\| `pip install (.*)` \| `(\w+)` \|$", line))
}


def environment(folder: Path, packages: str) -> Path:
    """Return the interpreter of a new environment with these packages, in tested versions."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
    done = subprocess.run(
        [*pip, *shlex.split(packages)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "No matching distribution found" in done.stderr:
        pytest.skip("packages cannot be installed here")
    assert done.returncode == 0, done.stderr
    return python


def test_each_way_in_has_an_install_line() -> None:
    assert set(ROWS) == {
        "langchain_rag_accel",
        "llama_index_rag_accel",
        "neo4j_graphrag_rag_accel",
        "rag_accel",
    }


@pytest.mark.slow  # an environment of its own each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_first_example_runs_with_exactly_the_packages_named(page: str, tmp_path: Path) -> None:
    line, example = INSTALL.search(PAGES[page]), EXAMPLE.search(PAGES[page])
    assert line is not None
    assert example is not None
    python = environment(tmp_path / "venv", line[1])
    done = subprocess.run(
        [python, "-c", example[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == example[2]


@pytest.mark.slow  # an environment of its own each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", ROWS)
def test_each_way_in_is_imported_with_exactly_the_packages_named(
    package: str, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", ROWS[package])
    code = f"import {package}; print({package}.__name__)"
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [package]
