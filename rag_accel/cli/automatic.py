"""Acceleration of the frameworks that a program imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

from rag_accel.errors import ConfigError
from rag_accel.interception.integration import Integration
from rag_accel.registry import automatic_registry

#: the module with whose import an integration is switched on, where it is not named like it
_MODULES = {
    "langchain": "langchain_core",
    "llama-index": "llama_index.core",
    "neo4j-graphrag": "neo4j_graphrag",
}


def watched_modules() -> tuple[str, ...]:
    """Return the modules whose import switches an integration on."""
    return tuple(dict.fromkeys(map(module_of, automatic_registry().names())))


def switch_on(module: str, *, is_program: bool = False) -> None:
    """Accelerate the framework of this module in this process, from now on.

    Args:
        module: the framework's module.
        is_program: whether this process is the one that was asked for, and none that it started.

    Raises:
        ConfigError: if no integration of it can be imported.
    """
    registry, missing = automatic_registry(), list[str]()
    names = [name for name in registry.names() if module_of(name) == module]
    for name in names:
        try:
            switch = registry.get(name)
        except ImportError as error:
            missing.append(str(error))
        else:
            switch()
    if len(missing) == len(names):
        raise ConfigError(
            "nothing to accelerate",
            found="; ".join(missing) or f"no integration of {module}",
            valid=", ".join(registry.names()) or "an installed integration",
            hint="install the extra of the framework that the program uses",
        )
    # What it needs is loaded by now, as the framework's integration is.
    from rag_accel.interception.start_summary import summarise

    summarise(says_nothing=is_program)


def module_of(name: str) -> str:
    return _MODULES.get(name, name)


def imported_integrations() -> Iterator[Integration]:
    """Yield the integrations of the frameworks that are imported and understood."""
    registry = automatic_registry()
    for name in registry.names():
        if module_of(name) not in sys.modules:
            continue
        package = registry.origin(name).partition(": ")[2].partition(".")[0]
        found: Integration = importlib.import_module(f"{package}.integration").INTEGRATION
        if found.missing() is None:
            yield found
