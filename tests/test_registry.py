"""Plugins are found by name, imported late, and never harm each other."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rag_accel.errors import ConfigError
from rag_accel.registry import (
    AUTOMATIC,
    COMMANDS,
    ENGINES,
    PLANS,
    SERVED,
    Registry,
    automatic_registry,
    command_registry,
    engine_registry,
    plan_registry,
    served_registry,
)

GROUP = "rag_accel_test.plugins"
GROUPS = (ENGINES, COMMANDS, AUTOMATIC, SERVED, PLANS)
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
BUILT_IN = [
    EntryPoint(name, value, group)
    for group, plugins in PROJECT.get("entry-points", {}).items()
    for name, value in plugins.items()
]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: its metadata and the modules it holds, importable for one test."""
    before = set(sys.modules)

    def add(distribution: str, plugins: dict[str, str], **modules: str) -> None:
        home = tmp_path / distribution
        info = home / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\n")
        lines = "".join(f"{name} = {value}\n" for name, value in plugins.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        for name, text in modules.items():
            (home / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(home))

    yield add
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


def registry() -> Registry[Callable[..., object]]:
    return Registry(GROUP)


def test_a_registered_name_gives_its_factory(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"}, plugin_alpha="def make(): return 41 + 1")
    assert registry().get("one")() == 42


def test_names_are_sorted_and_import_nothing(install: Install) -> None:
    install(
        "alpha",
        {"two": "plugin_alpha:make", "one": "plugin_alpha:make"},
        plugin_alpha="def make(): ...",
    )
    assert registry().names() == ("one", "two")
    assert "one" in registry()
    assert "plugin_alpha" not in sys.modules


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest(install: Install) -> None:
    install("alpha", {"embedding": "plugin_alpha:make", "rerank": "plugin_alpha:make"})
    with pytest.raises(ConfigError) as caught:
        registry().get("embeding")
    assert caught.value.valid == "embedding, rerank"
    assert caught.value.found == "'embeding'"
    assert caught.value.hint == "did you mean 'embedding'?"


def test_an_unknown_name_in_an_empty_group_says_that_nothing_is_registered() -> None:
    with pytest.raises(ConfigError, match="no installed distribution registers one"):
        registry().get("anything")


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"}, plugin_alpha="def make(): ...")
    install("beta", {"one": "plugin_beta:make"}, plugin_beta="def make(): ...")
    with pytest.raises(ConfigError, match="alpha: plugin_alpha:make and beta: plugin_beta:make"):
        registry().get("one")


def test_a_name_registered_twice_leaves_the_others_alone(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"}, plugin_alpha="def make(): return 1")
    install(
        "beta",
        {"one": "plugin_beta:make", "two": "plugin_beta:make"},
        plugin_beta="def make(): return 2",
    )
    assert registry().names() == ("one", "two")
    assert registry().get("two")() == 2


def test_a_plugin_that_misses_a_package_stays_an_import_error_with_its_advice(
    install: Install,
) -> None:
    install(
        "alpha",
        {"one": "plugin_alpha:make", "two": "plugin_sound:make"},
        plugin_alpha="raise ImportError(\"pip install 'alpha[local]'\", name='torch')",
        plugin_sound="def make(): return 'sound'",
    )
    with pytest.raises(ImportError, match=r"'one' in .*alpha\[local\]") as caught:
        registry().get("one")
    assert caught.value.name == "torch"
    assert registry().get("two")() == "sound"


def test_a_plugin_that_raises_while_imported_is_reported_by_name(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"}, plugin_alpha="1 / 0")
    with pytest.raises(ConfigError, match=r"'one' in .*ZeroDivisionError") as caught:
        registry().get("one")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_plugin_whose_object_is_missing_is_reported_by_name(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:absent"}, plugin_alpha="")
    with pytest.raises(ConfigError, match=r"'one' in .*AttributeError"):
        registry().get("one")


def test_a_plugin_that_is_not_callable_is_refused(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"}, plugin_alpha="make = 3")
    with pytest.raises(ConfigError, match="an object of type int"):
        registry().get("one")


def test_origin_tells_distribution_and_import_path(install: Install) -> None:
    install("alpha", {"one": "plugin_alpha:make"})
    assert registry().origin("one") == "alpha: plugin_alpha:make"


def test_a_registry_made_later_sees_what_was_installed_in_between(install: Install) -> None:
    early = registry()
    assert early.names() == ()
    install("alpha", {"one": "plugin_alpha:make"})
    assert early.names() == ()
    assert registry().names() == ("one",)


def test_every_group_has_its_own_registry() -> None:
    registries = (
        engine_registry(),
        command_registry(),
        automatic_registry(),
        served_registry(),
        plan_registry(),
    )
    assert tuple(registry.group for registry in registries) == GROUPS


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: f"{entry.group}.{entry.name}")
def test_every_built_in_plugin_is_in_a_known_group_and_can_be_made(entry: EntryPoint) -> None:
    assert entry.group in GROUPS
    assert callable(entry.load())
