"""Arguments of the verbs of all integrations."""

from __future__ import annotations

from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.recognition.known_classes import full_name


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


def _not_a(name: str, found: Any, valid: str) -> ConfigError:
    return ConfigError(
        f"{name} is of another type",
        where=name,
        found=full_name(type(found)),
        valid=valid,
    )
