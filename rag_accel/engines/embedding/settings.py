"""Remember the settings of an object, and tell whether they are still the same."""

from __future__ import annotations

from operator import eq, is_
from typing import Any

_PLAIN = (str, int, float, bool, type(None))
#: Whether it trains is looked at elsewhere; the others say nothing about results.
_NO_SETTINGS = frozenset({"training", "verbose", "deprecation_warnings"})
#: Larger collections are tables, such as a vocabulary: too long to compare each time.
_MOST = 64


class Settings:
    """Compare an object's attributes with what they were.

    Plain values and small collections are compared with copies, since these may be written in
    place; all others must be the same objects.

    Args:
        owner: the object.
        with_private: whether names with an underscore count.
    """

    def __init__(self, owner: Any, with_private: bool = False) -> None:
        self._own = vars(owner)
        kept = {
            name: value
            for name, value in list(self._own.items())
            if name not in _NO_SETTINGS and (with_private or not name.startswith("_"))
        }
        self._values = {name: _copied(one) for name, one in kept.items() if _is_plain(one)}
        self._objects = {name: one for name, one in kept.items() if name not in self._values}

    def are_same(self) -> bool:
        """Tell whether all are what they were."""
        now = self._own.get
        try:
            return all(map(is_, map(now, self._objects), self._objects.values())) and all(
                map(eq, map(now, self._values), self._values.values())
            )
        except Exception:  # such as arrays in a list, which have no equality: who wrote them knows
            return False


def _is_plain(value: Any) -> bool:
    is_small = isinstance(value, list | tuple | dict | set) and len(value) <= _MOST
    return is_small or isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """Return a collection with copies of those in it; other values as they are."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_copied, value))
    return set(value) if isinstance(value, set) else value
