"""The layers hold, and every contract breaks when it is broken."""

from __future__ import annotations

import graphlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("rag_accel", "integrations", "adapters", "demo")

#: contract -> what breaks it: the file it is planted in and the module imported there
VIOLATIONS = {
    "distribution": ("adapters/rag_accel_adapters/planted.py", "langchain_rag_accel"),
    "rooms": ("rag_accel/registry_planted.py", "rag_accel.errors"),
    "frameworks": ("rag_accel/engines/planted.py", "langchain_core.documents"),
    "pure": ("rag_accel/passes/planted.py", "torch"),
    "time": ("rag_accel/scheduler/planted.py", "asyncio"),
    "driver": ("rag_accel/scheduler/planted_too.py", "rag_accel.scheduler.driver"),
    "adapters": ("adapters/rag_accel_adapters/planted_too.py", "rag_accel.accelerator"),
    "kv": ("rag_accel/scheduler/planted_kv.py", "rag_accel.kv.keys"),
    "compiled": (
        "rag_accel/engines/compiled/planted.py",
        "rag_accel.engines.embedding.compiled_model",
    ),
    "profile": ("rag_accel/profile/planted.py", "rag_accel.engines.batching"),
}


def _contracts() -> dict[str, str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = settings["tool"]["importlinter"]["contracts"]
    return {contract["id"]: contract["name"] for contract in found}


def _lint(root: Path) -> str:
    """Return what import-linter says about a checkout."""
    program = Path(sys.executable).with_name("lint-imports")
    paths = (root, root / "integrations", root / "adapters", root / "demo")
    done = subprocess.run(
        [program, "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources, so that they may be spoiled."""
    root = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_every_contract_is_kept(checkout: Path) -> None:
    report = _lint(checkout)
    for name in _contracts().values():
        assert f"{name} KEPT" in report, report


def test_every_contract_has_a_violation_to_be_tried_with() -> None:
    assert set(VIOLATIONS) == set(_contracts())


@contextmanager
def _planted(file: Path, imported: str) -> Iterator[None]:
    file.write_text(f"import {imported}\n")
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_contract_breaks_when_it_is_broken(contract: str, checkout: Path) -> None:
    path, imported = VIOLATIONS[contract]
    with _planted(checkout / path, imported):
        report = _lint(checkout)
    assert f"{_contracts()[contract]} BROKEN" in report, report
    assert Path(path).stem in report.partition("Broken contracts")[2], report


@pytest.mark.parametrize(
    ("room", "imported"),
    [
        ("scheduler", "rag_accel.engines.batching"),
        ("graph", "rag_accel.scheduler.state"),
        ("system", "rag_accel.accelerator"),
        ("interception", "rag_accel.adoption.owned_embedding"),
        ("adoption", "rag_accel.testing"),
        ("serving", "rag_accel.cli.run"),
    ],
    ids=[
        "a sibling",
        "a higher room",
        "the accelerator",
        "its own calls",
        "the test kit",
        "the command line",
    ],
)
def test_a_room_must_not_import(room: str, imported: str, checkout: Path) -> None:
    with _planted(checkout / "rag_accel" / room / "planted.py", imported):
        report = _lint(checkout)
    assert f"{_contracts()['rooms']} BROKEN" in report, report


@pytest.mark.parametrize(
    "package", ["rag_accel", "adapters/rag_accel_adapters", "integrations/langchain_rag_accel"]
)
def test_nothing_in_the_wheel_imports_the_demonstration(package: str, checkout: Path) -> None:
    with _planted(checkout / package / "planted.py", "rag_accel_demo.load"):
        report = _lint(checkout)
    assert f"{_contracts()['distribution']} BROKEN" in report, report


@pytest.mark.parametrize(
    "room", ["interception", "adoption.embedding_calls", "leaves", "engines.llm"]
)
def test_an_adapter_must_not_import(room: str, checkout: Path) -> None:
    file = checkout / "adapters/rag_accel_adapters/libraries/planted.py"
    with _planted(file, f"rag_accel.{room}"):
        report = _lint(checkout)
    assert f"{_contracts()['adapters']} BROKEN" in report, report


def test_what_recognises_objects_must_not_import_calls(checkout: Path) -> None:
    file = checkout / "rag_accel/adoption/triplets.py"
    text = file.read_text()
    file.write_text(f"{text}\n\nimport rag_accel.adoption.graph_search\n")
    try:
        report = _lint(checkout)
    finally:
        file.write_text(text)
    assert f"{_contracts()['adapters']} BROKEN" in report, report


def test_no_import_leads_back_to_where_it_came_from() -> None:
    """An import inside a function counts, too: it only hides the circle."""
    graph = grimp.build_graph(
        "rag_accel",
        "langchain_rag_accel",
        "llama_index_rag_accel",
        "neo4j_graphrag_rag_accel",
        "rag_accel_adapters",
        "rag_accel_demo",
        exclude_type_checking_imports=True,
    )
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which shows the circle
