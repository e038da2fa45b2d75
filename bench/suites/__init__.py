"""Find and import suites: every module of this folder, and of ``bench/research/suites``, is one.

A suite of research compares designs with an emulated device, or parts of the project by themselves;
no user runs what it measures.
"""

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from bench.results import SuiteResult
from rag_accel.errors import ConfigError

_HEADING = "Ratios:"
_FOLDER = Path(__file__).resolve().parent
#: By the package that holds them, the folders of suites.
_FOLDERS = {
    "bench.suites": _FOLDER,
    "bench.research.suites": _FOLDER.parent / "research" / "suites",
}


class Suite(Protocol):
    """What a suite's module offers.

    One that has parameters also has a function ``configured(quick, settings)``, which returns the
    sizes that ``run`` is to measure and raises ConfigError on settings that it does not know.
    """

    def run(self, quick: bool, sizes: Any = None) -> SuiteResult:
        """Measure; ``quick`` in at most 10 minutes, else in at most 60.

        ``sizes`` are the suite's own, by default those that ``quick`` stands for.
        """
        ...


def suite_names() -> list[str]:
    """Return the names of all suites, without importing them."""
    return sorted(_packages())


def is_research(name: str) -> bool:
    """Tell whether a suite is one of research; an unknown one is not."""
    return _packages().get(name, "") == "bench.research.suites"


def load_suite(name: str) -> Suite:
    """Import a suite.

    Raises:
        ConfigError: if there is none of that name.
    """
    package = _packages().get(name)
    if package is None:
        raise ConfigError(
            "unknown suite", where="bench", found=repr(name), valid=", ".join(suite_names())
        )
    return cast(Suite, import_module(f"{package}.{name}"))


def _packages() -> dict[str, str]:
    """Return the package of every suite, by the suite's name."""
    return {
        module.name: package
        for package, folder in _FOLDERS.items()
        for module in pkgutil.iter_modules([str(folder)])
    }


def ratio_definitions(name: str) -> dict[str, str]:
    """Return what each ratio of a suite means, read from the suite's docstring.

    The docstring ends with a section ``Ratios:`` of indented ``name: definition`` entries, whose
    further lines are indented deeper. A definition begins with the opponent, ``against ...``, and
    the strongest opponent comes first. An unknown suite defines nothing: results outlive suites.
    """
    return parse_definitions(_docstring(name))


def suite_summary(name: str) -> str:
    """Return the first line of a suite's docstring: what it measures; nothing if it is unknown."""
    return _docstring(name).partition("\n")[0]


def _docstring(name: str) -> str:
    package = _packages().get(name)
    if package is None:
        return ""
    path = _FOLDERS[package] / f"{name}.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def parse_definitions(docstring: str) -> dict[str, str]:
    """Return the entries of the section ``Ratios:`` of a docstring, each on one line."""
    found: dict[str, list[str]] = {}
    name = ""
    _, _, section = docstring.partition(f"{_HEADING}\n")
    for line in section.splitlines():
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth == 0:
            break
        if depth == 4:
            name, _, first = line.strip().partition(": ")
            found[name] = [first]
        else:
            found[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}
