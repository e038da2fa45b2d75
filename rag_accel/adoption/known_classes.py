"""Known classes as texts name them, and the error of an object that nothing acts on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassRow:
    """A known class as ``explain``, ``coverage`` and the table of the documentation describe it.

    Args:
        name: its full name.
        acts: what acts on its objects.
        unless: the settings that switch that off.
    """

    name: str
    acts: str
    unless: tuple[str, ...] = ()


class NotAdoptedError(Exception):
    """Nothing acts on an object of a known class.

    Args:
        because: the setting or the module that stands in the way.
        change: what would change that; empty if nothing would.
    """

    def __init__(self, because: str, change: str = "") -> None:
        super().__init__(f"{because}; {change}" if change else because)


def overrides(cls: type, known: type) -> str:
    """Say that a subclass of a known class is another."""
    return f"{cls.__name__} overrides a method of {known.__name__}; use {known.__name__} itself"
