"""Checks of the numbers that options of engines take."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from rag_accel.errors import ConfigError


def check_least(where: str, value: Any, least: float) -> None:
    """Raise ConfigError where something is given that is no number, or one that is too small."""
    if value is not None and not (is_number_of(Real, value) and value >= least):
        valid = f"at least {least}"
        raise ConfigError("option out of range", where=where, found=value, valid=valid)


def check_whole(where: str, value: Any, least: int) -> None:
    """Raise ConfigError where something is given that is no whole number, or a smaller one."""
    if value is not None and not (is_number_of(Integral, value) and value >= least):
        valid = f"a whole number, at least {least}"
        raise ConfigError("option out of range", where=where, found=repr(value), valid=valid)


def check_share(where: str, value: Any) -> None:
    """Raise ConfigError where something is given that is no share."""
    if not (is_number_of(Real, value) and 0 <= value <= 1):
        raise ConfigError("option out of range", where=where, found=value, valid="0 to 1")


def is_number_of(kind: type, value: Any) -> bool:
    """Tell whether something is a number of a kind; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)
