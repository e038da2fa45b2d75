"""Each known class is where its row says; skipped tests name the classes that are off here."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
from pathlib import Path

import pytest

from rag_accel.system.classes import full_name

GENERATE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate.py"))
NAMES = [row.name for rows in GENERATE["CLASSES"].values() for row in rows]


def _package(name: str) -> str:
    """Return the package that one distribution brings: LlamaIndex's share a namespace."""
    parts = name.split(".")
    is_shared = parts[0] == "llama_index" and parts[1] != "core"
    return ".".join(parts[: 3 if is_shared else 1])


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent is not there
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_known_class_is_where_its_row_says(name: str) -> None:
    package, (module, _, attribute) = _package(name), name.rpartition(".")
    if not _is_installed(package):
        pytest.skip(f"{name} is off: {package} is not installed")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if error.name is None or _package(error.name) == package:
            raise
        pytest.skip(f"{name} is off: {error.name} is not installed")
    assert full_name(getattr(found, attribute)) == name
