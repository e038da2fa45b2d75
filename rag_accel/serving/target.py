"""The object that a command names, found by ``module:name``."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError

_FORM = "module:name, such as app:chain"


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """An object to serve.

    Args:
        name: what clients call it.
        obj: the object.
        accelerator: what it runs on, if the program brings one.
    """

    name: str
    obj: Any
    accelerator: Accelerator | None = None


def find_target(
    spec: str, accelerator_spec: str | None = None, model_name: str | None = None
) -> ServingTarget:
    """Import what a command names; the working directory is searched first.

    A function without arguments is called for the object, and a pair is an object with its
    accelerator. Exceptions of the imported module pass through.

    Raises:
        ConfigError: there is no such module or name, or it is not what it should be.
    """
    found = _find(spec)
    if inspect.isfunction(found):
        found = _made(spec, found)
    given = None if accelerator_spec is None else _find(accelerator_spec)
    if isinstance(found, tuple) and len(found) == 2:
        if given is not None:
            raise ConfigError(
                "there are two accelerators", where=spec, hint="leave --accelerator out"
            )
        found, given = found
    if given is not None and not isinstance(given, Accelerator):
        raise ConfigError(
            "this is no accelerator",
            where=accelerator_spec or spec,
            found=type(given).__name__,
            valid="an Accelerator",
        )
    return ServingTarget(model_name or spec.rpartition(":")[2], found, given)


def _find(spec: str) -> Any:
    module, colon, path = spec.partition(":")
    if not (module and colon and path):
        raise ConfigError("nothing is named so", found=repr(spec), valid=_FORM)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            "there is no such module", where=spec, found=error.name, valid=_FORM
        ) from None
    try:
        return attrgetter(path)(imported)
    except AttributeError as error:
        raise ConfigError(
            "the module has no such name", where=spec, found=str(error), valid=_FORM
        ) from None


def _made(spec: str, factory: Any) -> Any:
    required = [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required or inspect.iscoroutinefunction(factory):
        raise ConfigError(
            "a function that makes the object takes no arguments and is not async",
            where=spec,
            found=", ".join(required) or "async def",
            hint="serve what it returns, or wrap a step of a chain in RunnableLambda",
        )
    return factory()
