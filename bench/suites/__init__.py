"""Find and import suites: every module of this folder is one."""

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
#: What has results as a suite has, and is run by a command of its own.
_COMMANDS = {"gpu": _FOLDER.parent / "gpu" / "command.py"}


class Suite(Protocol):
    """What a suite's module offers.

    One that has parameters also has a function ``configured(quick, settings)``, which returns the
    sizes that ``run`` is to measure and raises ConfigError on settings that it does not know.
    """

    def run(self, quick: bool, sizes: Any = None) -> SuiteResult:
        """Measure; ``quick`` in at most 9 minutes, else in at most 60.

        ``sizes`` are the suite's own, by default those that ``quick`` stands for.
        """
        ...


def suite_names() -> list[str]:
    """Return the names of all suites, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules([str(_FOLDER)]))


def load_suite(name: str) -> Suite:
    """Import a suite.

    Raises:
        ConfigError: if there is none of that name.
    """
    if name not in suite_names():
        raise ConfigError(
            "unknown suite", where="bench", found=repr(name), valid=", ".join(suite_names())
        )
    return cast(Suite, import_module(f"bench.suites.{name}"))


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
    path = _COMMANDS.get(name)
    if path is None:
        if name not in suite_names():
            return ""
        path = _FOLDER / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


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
