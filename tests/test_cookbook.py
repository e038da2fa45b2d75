"""The pages of the cookbook run as they are, offline, and use only what is public."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "cookbook").glob("[0-9]*.py"))
OURS = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "neo4j_graphrag_rag_accel",
    "rag_accel",
    "rag_accel_adapters",
    "rag_accel_demo",
)
PUBLIC = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "rag_accel",
    "rag_accel.testing",
    "rag_accel.workflows",
)


def _named(page: Path) -> str:
    return page.stem


@pytest.mark.slow  # test_cookbook_texts.py runs one of them; the documents show programs like these
@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_a_page_runs_outside_the_checkout(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", page],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_a_page_fits_under_a_hundred_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) < 100


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_a_page_imports_public_names_only(page: Path) -> None:
    for node in ast.walk(ast.parse(page.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            assert node.module in PUBLIC, f"{node.module} is not public"
            public = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public)


def test_pages_are_numbered_without_a_gap() -> None:
    numbers = [int(page.stem.partition("_")[0]) for page in PAGES]
    assert numbers == list(range(1, len(PAGES) + 1))
