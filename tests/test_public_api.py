"""What ``import rag_accel`` offers, and what it costs."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import rag_accel
from rag_accel import errors

PACKAGES = (
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "neo4j_graphrag_rag_accel",
    "rag_accel",
    "rag_accel_demo",
    "rag_accel.engines",
    "rag_accel.fidelity",
    "rag_accel.interception",
    "rag_accel.passes",
    "rag_accel.server",
    "rag_accel.testing",
    "rag_accel.workflows",
)
OURS = (
    "rag_accel",
    "rag_accel_demo",
    "langchain_rag_accel",
    "llama_index_rag_accel",
    "neo4j_graphrag_rag_accel",
)
ROOT = Path(__file__).parents[1]

#: Packages that nobody pays for who only imports ours.
HEAVY = ("faiss", "httpx", "langgraph", "llama_index", "sentence_transformers", "torch")


def _order(name: str) -> tuple[int, str]:
    """Sort as the linter does: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _ours(module: ModuleType) -> set[str]:
    """Return the public names a module holds that were defined in our packages."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(OURS)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_every_public_name_once_and_in_order(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(set(module.__all__), key=_order)
    assert _ours(module) <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    values = {name: getattr(module, name) for name in module.__all__}
    undocumented = [
        name
        for name, value in values.items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)
    ]
    assert not undocumented


def test_every_error_can_be_imported_from_the_top() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.RagAccelError)
    }
    assert classes <= set(rag_accel.__all__)


def test_the_core_needs_numpy_only(tmp_path: Path) -> None:
    _see_only(tmp_path, "numpy", "numpy.libs")
    (tmp_path / "rag_accel").symlink_to(ROOT / "rag_accel")
    _run_alone(tmp_path, "import rag_accel; rag_accel.Accelerator(strict=True).close()")


def test_the_doctor_works_with_numpy_only(tmp_path: Path) -> None:
    _see_only(tmp_path, "numpy", "numpy.libs")
    (tmp_path / "rag_accel").symlink_to(ROOT / "rag_accel")
    said = _run_alone(tmp_path, "import rag_accel.cli as c, sys; sys.exit(c.main(['doctor']))")
    assert "missing torch" in said
    assert "missing neo4j" in said


@pytest.mark.parametrize("name", ["langchain", "llama_index", "neo4j_graphrag"])
def test_a_missing_framework_names_the_extra(tmp_path: Path, name: str) -> None:
    package, extra = f"{name}_rag_accel", name.replace("_", "-")
    _see_only(tmp_path, "numpy", "numpy.libs")
    for folder in ("rag_accel", f"integrations/{package}"):
        (tmp_path / Path(folder).name).symlink_to(ROOT / folder)
    said = _run_alone(tmp_path, f"try: import {package}\nexcept ImportError as error: print(error)")
    assert f"pip install 'rag-accel[{extra}]'" in said


@pytest.mark.parametrize(
    "package", ["langchain_rag_accel", "rag_accel", "rag_accel.engines", "rag_accel.testing"]
)
def test_importing_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_core_loads_no_framework() -> None:
    code = "import sys, rag_accel; print([n for n in sys.modules if n.startswith('langchain')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _see_only(place: Path, *names: str) -> None:
    """Link installed packages into an otherwise empty folder."""
    for name in names:
        origin = Path(str(metadata.distribution("numpy").locate_file(name)))
        if origin.exists():
            (place / name).symlink_to(origin)


def _run_alone(place: Path, code: str) -> str:
    """Return what code prints where nothing but the standard library and ``place`` exists."""
    start = f"import sys; sys.path.insert(0, {str(place)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code],
        env={name: os.environ[name] for name in ("PATH",)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
