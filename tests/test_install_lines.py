"""The install lines of the documents bring whatever the examples under them need.

Each is followed with the wheel instead of the checkout or the index that it names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from guide_endpoint import GuideEndpoint

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OURS = re.compile(r"(?:-e '\.|'rag-accel)(\[[^']*\])'")
INSTALL = re.compile(rf"pip install ({OURS.pattern}[^`\n]*)")
ALONE = re.compile(r"^pip install --no-deps (\S+)$", re.MULTILINE)
EXAMPLE = re.compile(r"```python\b[^\n]*\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "docs" / "llama_index.md",
        *sorted((ROOT / "docs" / "guides").glob("*.md")),
    )
}
#: The lines of the README's table, by the package that is imported.
ROWS = {
    match[2]: match[1]
    for line in README.splitlines()
    if (match := re.match(r"\| \[.*\| `pip install (.*)` \| `(\w+)` \|$", line))
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that this checkout builds."""
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT]
    subprocess.run(line, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, packages: str, wheel: Path) -> Path:
    """Return the interpreter of a new environment with these packages, in tested versions.

    Args:
        packages: as an install line names them; ours is the wheel.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    given = shlex.split(OURS.sub(rf"'{wheel}\1'", packages))
    done = subprocess.run([*pip, *given], cwd=folder, capture_output=True, text=True, check=False)
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
def test_the_first_example_runs_with_exactly_the_packages_named(
    page: str, wheel: Path, tmp_path: Path
) -> None:
    line, example = INSTALL.search(PAGES[page]), EXAMPLE.search(PAGES[page])
    assert line is not None
    assert example is not None
    python = environment(tmp_path / "venv", line[1], wheel)
    for package in ALONE.findall(PAGES[page]):
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", package]
        subprocess.run(pip, check=True)
    with GuideEndpoint() as endpoint:
        done = subprocess.run(
            [python, "-I", "-c", example[1]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **endpoint.environment},
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == example[2]


@pytest.mark.slow  # an environment of its own each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", ROWS)
def test_each_way_in_is_imported_with_exactly_the_packages_named(
    package: str, wheel: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", ROWS[package], wheel)
    code = f"import {package}; print({package}.__name__)"
    done = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [package]


@pytest.mark.slow  # an environment of its own
def test_the_wheel_alone_brings_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", str(wheel), wheel)
    line = [python, "-m", "pip", "list", "--format=json"]
    listed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    names = {package["name"] for package in json.loads(listed)} - {"pip", "setuptools"}
    assert names == {"numpy", "rag-accel"}
