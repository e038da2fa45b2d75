"""A fourth framework is a table: one ``Integration`` and one ``Framework``."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError, UnreadOptionWarning
from rag_accel.interception import plain
from rag_accel.interception.identity import open_blocks

FRAMEWORK = """
class Model:
    def complete(self, prompt):
        raise NotImplementedError

class Echo(Model):
    def complete(self, prompt):
        return prompt.upper()
"""
TABLE = """
import small
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception import Framework, LeafMethod

SMALL = Framework("Small", {small.Model: [LeafMethod("complete", PrimitiveKind.DECODING)]})
"""
INTEGRATION = """
from rag_accel.interception.integration import Integration

INTEGRATION = Integration(
    name="Small", package="small_rag_accel", module="small", distribution="numpy", extra="small",
    acceleration="small_rag_accel.table:SMALL", roots=("small",),
    components={"Echo": "components"},
    required={"small.Model": ("complete",)},
)
"""
PACKAGE = """
from small_rag_accel.integration import INTEGRATION
globals().update(INTEGRATION.verbs())
__getattr__ = INTEGRATION.component
"""
FILES = {
    "small/__init__.py": FRAMEWORK,
    "small_rag_accel/table.py": TABLE,
    "small_rag_accel/integration.py": INTEGRATION,
    "small_rag_accel/components.py": "from small import Echo",
    "small_rag_accel/__init__.py": PACKAGE,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder of the framework and of its integration; both are forgotten."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("small")]:
        sys.modules.pop(name)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator."""
    with Accelerator() as made:
        yield made


def package() -> Any:
    """Import the integration."""
    importlib.invalidate_caches()
    return importlib.import_module("small_rag_accel")


def steps(accelerator: Accelerator) -> int:
    """Return how many leaf calls an accelerator's scheduler has heard of."""
    engines: Any = accelerator.metrics.snapshot()["engines"]
    return sum(engine["steps"] for engine in engines.values())


@pytest.mark.usefixtures("folder")
def test_its_objects_are_accelerated(accelerator: Accelerator) -> None:
    small = package()
    echo = importlib.import_module("small").Echo()
    fast = small.accelerate(echo, accelerator=accelerator)
    with small.coverage(fast) as seen:
        assert (fast.complete("a"), isinstance(fast, type(echo))) == ("A", True)
    assert (seen.borrowed, seen.passed_by, steps(accelerator)) == (1, 0, 1)
    assert [row.kind for row in seen.rows()] == ["Model"]
    assert small.explain(fast).splitlines()[0] == (
        "Echo accelerated by interception: Small keeps the control flow,"
    )
    assert "  program: Echo: borrowed: admitted by the scheduler" in small.explain(fast)


@pytest.mark.usefixtures("folder")
def test_it_is_activated_and_switched_on(accelerator: Accelerator) -> None:
    small = package()
    echo = importlib.import_module("small").Echo()
    with small.activate(accelerator):
        assert (echo.complete("a"), steps(accelerator)) == ("A", 1)
    assert (echo.complete("a"), steps(accelerator)) == ("A", 1)
    before, switch = open_blocks(), small.INTEGRATION.switch
    switch.on()
    switch.on()
    assert len(open_blocks()) == len(before) + 1
    switch.off()
    switch.off()
    assert open_blocks() == before


@pytest.mark.usefixtures("folder")
def test_bad_arguments_have_named_errors(accelerator: Accelerator) -> None:
    small = package()
    echo = importlib.import_module("small").Echo()
    with pytest.raises(ConfigError, match="an object that does work"):
        small.accelerate(3)
    with pytest.raises(ConfigError, match="not both"):
        small.accelerate(echo, accelerator=accelerator, options=accelerator.options)
    with pytest.raises(AttributeError, match="'small_rag_accel' has no attribute 'Missing'"):
        _ = small.Missing
    with Accelerator(kv_reuse="full") as other, pytest.warns(UnreadOptionWarning, match="kv_reuse"):
        small.accelerate(echo, accelerator=other)


@pytest.mark.usefixtures("folder")
def test_an_option_given_to_accelerate_is_an_error_that_says_where_it_belongs() -> None:
    small = package()
    echo = importlib.import_module("small").Echo()
    for accelerate in (small.accelerate, plain.accelerate):
        with pytest.raises(TypeError) as caught:
            accelerate(echo, kv_reuse="full")
        assert str(caught.value) == (
            "accelerate() got an unexpected keyword argument 'kv_reuse': it is an option of the "
            "accelerator, given as accelerator=Accelerator(kv_reuse=...), or as "
            "options=Options(kv_reuse=...) for this object alone"
        )
        with pytest.raises(TypeError) as caught:
            accelerate(echo, acelerator=None)
        assert str(caught.value) == (
            "accelerate() got an unexpected keyword argument 'acelerator'; valid: accelerator, "
            "options, interactive; did you mean 'accelerator'?"
        )


@pytest.mark.usefixtures("folder")
def test_its_verbs_are_copied_and_pickled_by_name() -> None:
    small = package()
    assert small.Echo is importlib.import_module("small").Echo
    assert pickle.loads(pickle.dumps(small.accelerate)) == small.accelerate
    assert copy.deepcopy(small.explain) == small.explain


@pytest.mark.parametrize(
    ("file", "text", "lacking"),
    [
        ("small/__init__.py", "class Model: ...", "small.Model.complete"),
        ("small_rag_accel/table.py", "import small.gone", "No module named 'small.gone'"),
    ],
    ids=["a method", "a module"],
)
def test_another_version_runs_plainly_and_says_where_the_supported_ones_stand(
    file: str, text: str, lacking: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / file).write_text(text)
    small, thing = package(), object()
    assert small.accelerate(thing) is thing
    assert "runs plainly" in small.explain(thing)
    before = open_blocks()
    with small.activate(), small.coverage() as seen:
        assert open_blocks() == before
    assert seen.rows() == []
    (said,) = caplog.messages
    assert said.startswith("nothing is accelerated: numpy ")
    assert f"lacks what interception stands on: {lacking};" in said
    assert "COMPATIBILITY.md" in said
    assert "pyproject.toml" in said


def test_a_missing_framework_names_the_extra(folder: Path) -> None:
    (folder / "small/__init__.py").write_text("import not_installed_at_all")
    with pytest.raises(ImportError, match=r"needs numpy: pip install 'rag-accel\[small\]'"):
        package()


@pytest.mark.parametrize("name", ["not_installed_at_all", "small_rag_accel.gone"])
def test_what_else_is_missing_is_not_taken_for_another_version(folder: Path, name: str) -> None:
    (folder / "small_rag_accel/table.py").write_text(f"import {name}")
    with pytest.raises(ImportError, match=name):
        package()
