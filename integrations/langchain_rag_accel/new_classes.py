"""Hear of leaf classes that are defined while somebody watches; whoever calls holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import LLM

from langchain_rag_accel.leaf_methods import LEAVES

Watcher = Callable[[type], None]

#: Bases whose subclasses are watched; an ``LLM`` is a ``BaseLLM``.
_BASES = [base for base in LEAVES if base is not LLM]

_watcher: Watcher | None = None
_saved: dict[type, Any] = {}


def watch(watcher: Watcher) -> None:
    """Call ``watcher`` with every leaf class defined from now on."""
    global _watcher
    _watcher = watcher
    for base in _BASES:
        if base not in _saved:
            _install(base)


def unwatch() -> None:
    """Restore what stood in the classes before."""
    global _watcher
    _watcher = None
    for base in list(_saved):
        _remove(base)


def _install(base: type) -> None:
    original = base.__dict__.get("__init_subclass__")
    _saved[base] = original

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807
        if original is not None:
            original.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        watcher = _watcher
        if watcher is not None:
            watcher(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


def _remove(base: type) -> None:
    original = _saved.pop(base)
    if original is None:
        del base.__init_subclass__
    else:
        base.__init_subclass__ = original
