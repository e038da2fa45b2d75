"""Remember the settings of an object, and tell whether they are still the same."""

from __future__ import annotations

from operator import eq
from typing import Any

_PLAIN = (str, int, float, bool, type(None))
#: Whether it trains is looked at elsewhere; the others say nothing about results.
_NO_SETTINGS = frozenset({"training", "verbose", "deprecation_warnings"})
#: Larger collections are tables, such as a vocabulary: too long to compare each time.
_MOST = 64


class Settings:
    """Compare an object's attributes that are plain values, or small collections, with copies.

    Args:
        owner: the object.
        with_private: whether names with an underscore count.
    """

    def __init__(self, owner: Any, with_private: bool = False) -> None:
        self._own = vars(owner)
        kept = {
            name: _copied(value)
            for name, value in list(self._own.items())
            if name not in _NO_SETTINGS
            and (with_private or not name.startswith("_"))
            and (isinstance(value, _PLAIN) or _is_small(value))
        }
        self._names, self._values = tuple(kept), tuple(kept.values())

    def are_same(self) -> bool:
        """Tell whether all are what they were."""
        return all(map(eq, map(self._own.get, self._names), self._values))


def _is_small(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set) and len(value) <= _MOST


def _copied(value: Any) -> Any:
    """Return a collection with copies of those in it; other values as they are."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    return set(value) if isinstance(value, set) else value
