"""The object that a command names, found by ``module:name``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError

_FORM = "module:name, such as app:chain"
_NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """An object to serve.

    Args:
        name: what clients call it.
        obj: the object.
        accelerator: what it runs on, if the program brings one.
        make: makes both for the namespace of a tenant, in the place of ``obj``.
    """

    name: str
    obj: Any
    accelerator: Accelerator | None = None
    make: Callable[[str], Any] | None = None

    def for_tenant(self, namespace: str) -> tuple[Any, Accelerator | None]:
        """Return the object of a tenant and its accelerator, if the program brings one."""
        if self.make is None:
            return self.obj, self.accelerator
        return _split(self.make(namespace), self.name)


def find_target(
    spec: str,
    accelerator_spec: str | None = None,
    model_name: str | None = None,
    *,
    takes_functions: bool = False,
) -> ServingTarget:
    """Import what a command names; the working directory is searched first.

    A function without arguments is called for the object, one of ``namespace`` for that of each
    tenant, and a pair is an object with its accelerator. Exceptions of the imported module pass
    through.

    Args:
        spec: such as ``app:chain``.
        accelerator_spec: the same of an accelerator.
        model_name: what clients call it; by default the name, or the module of a function.
        takes_functions: a function of one other argument is an object itself.

    Raises:
        ConfigError: there is no such module or name, or it is not what it should be.
    """
    found, make = _find(spec), None
    module, _, own = spec.rpartition(":")
    if inspect.isfunction(found) and not (takes_functions and _takes_one(found)):
        own = module.rpartition(".")[2]  # the function's name says how it is made
        if _arguments(spec, found) == [_NAMESPACE]:
            found, make = None, found
        else:
            found = found()
    found, paired = _split(found, spec)
    given = None if accelerator_spec is None else _find(accelerator_spec)
    if accelerator_spec is not None and not isinstance(given, Accelerator):
        raise _no_accelerator(accelerator_spec, given)
    if given is not None and (paired is not None or make is not None):
        raise ConfigError("there are two accelerators", where=spec, hint="leave --accelerator out")
    return ServingTarget(model_name or own, found, given or paired, make)


def _split(found: Any, where: str) -> tuple[Any, Accelerator | None]:
    """Return an object and its accelerator, if it is a pair of them."""
    if not (isinstance(found, tuple) and len(found) == 2):
        return found, None
    obj, accelerator = found
    if not isinstance(accelerator, Accelerator):
        raise _no_accelerator(where, accelerator)
    return obj, accelerator


def _no_accelerator(where: str, found: Any) -> ConfigError:
    return ConfigError(
        "this is no accelerator",
        where=where,
        found=type(found).__name__,
        valid="an Accelerator",
    )


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


def _takes_one(function: Any) -> bool:
    required = _required(function)
    return len(required) == 1 and required != [_NAMESPACE]


def _required(function: Any) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _arguments(spec: str, factory: Any) -> list[str]:
    """Return the arguments that a function needs: none, or the namespace."""
    required = _required(factory)
    if required not in ([], [_NAMESPACE]) or inspect.iscoroutinefunction(factory):
        raise ConfigError(
            "a function that makes the object takes no argument, or namespace, and is not async",
            where=spec,
            found=", ".join(required) or "async def",
            hint="serve what it returns, or wrap a step of a chain in RunnableLambda",
        )
    return required
