"""Hear of leaf classes that are defined while somebody watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.language_models import LLM

from langchain_rag_accel.leaf_methods import LEAVES

Watcher = Callable[[type], None]

#: Bases whose subclasses are watched; an ``LLM`` is a ``BaseLLM``.
_BASES = [base for base in LEAVES if base is not LLM]

_lock = threading.RLock()
_watchers: list[Watcher] = []
_saved: dict[type, Any] = {}


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` with every leaf class defined while the block runs."""
    with _lock:
        if not _watchers:
            for base in _BASES:
                _install(base)
        _watchers.append(watcher)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watcher)
            if not _watchers:
                for base in _BASES:
                    _remove(base)


def _install(base: type) -> None:
    original = base.__dict__.get("__init_subclass__")
    _saved[base] = original

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807
        if original is not None:
            original.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        with _lock:
            for watcher in list(_watchers):
                watcher(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


def _remove(base: type) -> None:
    original = _saved.pop(base)
    if original is None:
        del base.__init_subclass__
    else:
        base.__init_subclass__ = original
