"""Engines, adapters and commands, found by name through entry points.

Built-in plugins register exactly as third parties' do, in ``pyproject.toml``::

    [project.entry-points."rag_accel.engines"]
    mine = "my_package.engine:MyEngine"

Names are known without importing anything; a plugin is imported when it is asked for, so one that
cannot be imported never harms the others.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from rag_accel.engine_api import Engine
from rag_accel.errors import ConfigError

ENGINES = "rag_accel.engines"
COMMANDS = "rag_accel.commands"
AUTOMATIC = "rag_accel.automatic"
SERVED = "rag_accel.served"
PLANS = "rag_accel.plans"

T = TypeVar("T", bound=Callable[..., object])


class Registry(Generic[T]):
    """Factories by the names of one entry-point group, imported when asked for.

    The installed distributions are looked through once, on first use: a registry made later sees
    what was installed in between. ``T`` is the type of the factories; that they are callable is
    checked, the rest is the plugin's promise.

    Args:
        group: entry-point group, such as ``rag_accel.engines``.
    """

    def __init__(self, group: str) -> None:
        self.group = group

    def names(self) -> tuple[str, ...]:
        """Return all registered names, sorted, whether or not their plugins can be imported."""
        return tuple(sorted(self._found))

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def origin(self, name: str) -> str:
        """Return where a name comes from: its distribution and import path.

        Raises:
            ConfigError: if the name is unknown or registered twice.
        """
        return _describe(self._entry(name))

    def get(self, name: str) -> T:
        """Import the plugin of this name and return its factory.

        Raises:
            ConfigError: if the name is unknown, registered twice, or its plugin is broken.
            ImportError: if the plugin misses a package it needs; names the plugin and says what
                the plugin said.
        """
        entry = self._entry(name)
        try:
            factory = entry.load()
        except ImportError as exc:
            # Stays an ImportError, so that a missing extra looks the same from everywhere.
            raise ImportError(
                f"{name!r} in {self.group} ({_describe(entry)}) cannot be imported: {exc}",
                name=exc.name,
                path=exc.path,
            ) from exc
        except Exception as exc:
            raise self._broken(entry, f"{type(exc).__name__} while importing it") from exc
        if not callable(factory):
            raise self._broken(entry, f"an object of type {type(factory).__name__}")
        return cast("T", factory)

    @cached_property
    def _found(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def _entry(self, name: str) -> EntryPoint:
        entries = self._found.get(name)
        if entries is None:
            raise self._unknown(name)
        first, *others = entries
        if others:
            raise ConfigError(
                "a plugin name is registered more than once",
                where=f"{name!r} in {self.group}",
                found=" and ".join(sorted(_describe(entry) for entry in entries)),
                valid="one distribution per name",
                hint="uninstall one of them or ask its author for another name",
            )
        return first

    def _unknown(self, name: str) -> ConfigError:
        near = difflib.get_close_matches(name, self.names(), n=1)
        return ConfigError(
            "unknown plugin",
            where=self.group,
            found=repr(name),
            valid=", ".join(self.names()) or "none: no installed distribution registers one",
            hint=f"did you mean {near[0]!r}?" if near else "install the package that registers it",
        )

    def _broken(self, entry: EntryPoint, found: str) -> ConfigError:
        return ConfigError(
            "a plugin cannot be used",
            where=f"{entry.name!r} in {self.group} ({_describe(entry)})",
            found=found,
            valid="an importable callable",
            hint="report this to the plugin's author",
        )


def engine_registry() -> Registry[Callable[..., Engine]]:
    return Registry(ENGINES)


def command_registry() -> Registry[Callable[..., Any]]:
    """Return the registry of command-line verbs."""
    return Registry(COMMANDS)


def automatic_registry() -> Registry[Callable[[], object]]:
    """Return the registry of what accelerates a framework in the whole process."""
    return Registry(AUTOMATIC)


def served_registry() -> Registry[Callable[..., Any]]:
    """Return the registry of factories that make a framework's objects answer over HTTP."""
    return Registry(SERVED)


def plan_registry() -> Registry[Callable[[Any], Any]]:
    """Return the registry of what makes graphs of programs, by the package that programs are of."""
    return Registry(PLANS)


def _describe(entry: EntryPoint) -> str:
    distribution = entry.dist.name if entry.dist is not None else "an unnamed distribution"
    return f"{distribution}: {entry.value}"
