"""Arguments of the verbs and components of all integrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from rag_accel.accelerator import Accelerator
from rag_accel.config import REMOVED_OPTIONS, Options
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import suggestion
from rag_accel.system.classes import full_name


def checked(accelerator: Any) -> Accelerator | None:
    """Return what was given as an accelerator, if it is one or ``None``.

    Raises:
        ConfigError: it is anything else.
    """
    if accelerator is None or isinstance(accelerator, Accelerator):
        return accelerator
    raise _not_a("accelerator", accelerator, "an Accelerator, or None for the one all share")


def chosen(accelerator: Any, options: Any) -> Accelerator | None:
    """Return the accelerator that the arguments of ``accelerate`` ask for.

    Raises:
        ConfigError: both are given, or one of them is of another type.
    """
    given = checked(accelerator)
    if options is None:
        return given
    if given is not None:
        raise ConfigError("accelerate() takes an accelerator or options, not both")
    if not isinstance(options, Options):
        raise _not_a("options", options, "Options, or None")
    return Accelerator(options=options)


def refuse_keywords(unknown: Mapping[str, Any]) -> None:
    """Raise TypeError if ``accelerate`` was given arguments that it does not have.

    Raises:
        ConfigError: for an option that there was, with what to use instead.
    """
    for name, value in unknown.items():
        if name in REMOVED_OPTIONS:
            Options().merged(**{name: value})
        told = f"accelerate() got an unexpected keyword argument {name!r}"
        options = [field.name for field in fields(Options)]
        if name in options:
            raise TypeError(
                f"{told}: it is an option of the accelerator, given as"
                f" accelerator=Accelerator({name}=...), or as options=Options({name}=...) for this"
                " object alone"
            )
        guess = suggestion(name, ["accelerator", "options", "interactive", *options])
        raise TypeError(
            f"{told}; valid: accelerator, options, interactive" + (f"; {guess}" if guess else "")
        )


def refuse_unknown(cls: Any, given: Any, *others: str) -> Any:
    """Return what a component's class, one of pydantic, is made with, if it has all of it.

    Args:
        cls: the class.
        given: its arguments by name; anything else is not looked at.
        others: the names of arguments that are no fields.

    Raises:
        ConfigError: it has no argument of a name.
    """
    if not isinstance(given, Mapping) or cls.model_config.get("extra") == "allow":
        return given
    names = cast("Mapping[str, Any]", given)
    own: Mapping[str, Any] = cls.model_fields
    known = [*others, *own]
    aliases = {field.alias for field in own.values()}
    # LlamaIndex writes it beside the fields.
    unknown = sorted(names.keys() - known - aliases - {"class_name"})
    if unknown:
        raise ConfigError(
            "a component has no such argument",
            where=cls.__name__,
            found=", ".join(unknown),
            valid=", ".join(known),
            hint=suggestion(unknown[0], known),
        )
    return names


def _not_a(name: str, found: Any, valid: str) -> ConfigError:
    return ConfigError(
        f"{name} is of another type",
        where=name,
        found=full_name(type(found)),
        valid=valid,
    )
