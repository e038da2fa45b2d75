"""The engine that another process makes: a factory by name and its arguments."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import Engine
from rag_accel.errors import ConfigError
from rag_accel.registry import engine_registry

_VALID = 'a name of rag_accel.engines, "module:attribute", or a function or class of a module'


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A factory of engines that other processes find, and its arguments.

    Args:
        factory: a name of the entry points ``rag_accel.engines``, or ``module:attribute``.
        arguments: the pickled arguments, by name.
    """

    factory: str
    arguments: bytes

    @classmethod
    def of(
        cls,
        factory: str | Callable[..., Engine],
        arguments: Mapping[str, Any] | None,
        where: str,
    ) -> EngineSpec:
        """Return the specification of an engine, without importing its factory.

        Args:
            factory: of the engine.
            arguments: of the factory, by name.
            where: names the class that was given them.

        Raises:
            ConfigError: an unknown factory, or arguments that cannot be pickled.
        """
        name = factory if isinstance(factory, str) else _path(factory, where)
        if ":" not in name:
            engine_registry().origin(name)
        return cls(name, _pickled(f"{where}({name!r})", arguments or {}))

    def make(self) -> Engine:
        """Make the engine here.

        Raises:
            ConfigError: there is no such factory here, or it makes something else.
            ImportError: a package is missing here.
        """
        engine = self._factory()(**pickle.loads(self.arguments))
        if not isinstance(engine, Engine):
            raise ConfigError(
                "the factory makes no engine",
                where=self.factory,
                found=type(engine).__name__,
                valid="an object with the methods of rag_accel.engine_api.Engine",
            )
        return engine

    def _factory(self) -> Callable[..., Any]:
        module, colon, attribute = self.factory.partition(":")
        if not colon:
            return engine_registry().get(self.factory)
        found: Any = importlib.import_module(module)
        try:
            for part in attribute.split("."):
                found = getattr(found, part)
        except AttributeError as error:
            raise _unknown(self.factory, str(error)) from error
        if not callable(found):
            raise _unknown(self.factory, f"an object of type {type(found).__name__}")
        return found


def _path(factory: Callable[..., Engine], where: str) -> str:
    """Return the path under which other processes import a factory.

    Raises:
        ConfigError: there is none.
    """
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not module or not name:
        raise _unknown(where, repr(factory))
    if module == "__main__" or "<" in name:
        raise ConfigError(
            "the factory cannot be imported by other processes",
            where=where,
            found=f"{module}:{name}",
            valid=_VALID,
            hint="move it into a module that they have",
        )
    return f"{module}:{name}"


def _pickled(where: str, arguments: Mapping[str, Any]) -> bytes:
    if not isinstance(arguments, Mapping):
        raise ConfigError(
            "arguments of an engine are given by name",
            where=where,
            found=type(arguments).__name__,
            valid='a mapping, such as {"model": "/models/minilm"}',
        )
    for key, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise ConfigError(
                "an argument cannot be sent to another process",
                where=f"{where}, argument {key!r}",
                found=f"{type(value).__name__}: {error}",
                valid="what pickle takes, such as a path, a name or a number",
                hint="name the model or file, and let the process load it",
            ) from error
    return pickle.dumps(dict(arguments))


def _unknown(factory: str, found: str) -> ConfigError:
    return ConfigError("unknown engine factory", where=factory, found=found, valid=_VALID)
