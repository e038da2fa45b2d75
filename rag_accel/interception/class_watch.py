"""The leaf classes that the process knows, and those that it defines or imports meanwhile.

A class is heard of by ``__init_subclass__`` of the base class that its framework knows. One that is
known by name has no such base: its library may be imported at any time, or never.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from rag_accel.interception.leaf_table import Framework, frameworks
from rag_accel.system.classes import NamedClasses

Watcher = Callable[[type], None]

_watcher: Watcher | None = None
#: What stood in the watched classes before.
_saved: dict[type, Any] = {}
#: Modules of classes known by name that were not imported when the others were patched.
_awaited: tuple[str, ...] = ()
#: How many modules there were when none of these was imported.
_num_modules = 0


def watch(watcher: Watcher) -> None:
    """Call ``watcher`` with every leaf class defined from now on; the caller holds a lock."""
    global _watcher, _awaited, _num_modules
    _watcher = watcher
    for framework in frameworks:
        bases = list(_bases_of(framework))
        for base in bases:
            # What derives from another base is heard of there.
            if base not in _saved and not any(
                issubclass(base, other) for other in bases if other is not base
            ):
                _install(base)
    _awaited, _num_modules = tuple(_awaited_modules()), 0


def unwatch() -> None:
    """Restore the original hooks of the classes."""
    global _watcher, _awaited
    _watcher, _awaited = None, ()
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


def leaf_classes() -> Iterator[type]:
    """Yield every class of leaves that the process knows."""
    seen: set[type] = set()
    waiting: list[type] = []
    for framework in frameworks:
        for base in _bases_of(framework):
            waiting.append(base)
            if base not in framework.leaves and base not in seen:  # known by name
                seen.add(base)
                yield base
    while waiting:
        for cls in waiting.pop().__subclasses__():
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
                yield cls


def _bases_of(framework: Framework) -> Iterator[type]:
    """Yield the classes that a framework's leaves derive from, as far as they are imported."""
    for base in framework.leaves:
        if isinstance(base, NamedClasses):
            yield from base.imported()
        else:
            yield base


def may_be_imported() -> bool:
    """Tell whether a module that a class is awaited from is imported, or is being so.

    Asked by every call, so that it looks only where modules have come or gone since.
    """
    global _num_modules
    number = len(sys.modules)
    if number == _num_modules:
        return False
    if not _awaited or sys.modules.keys().isdisjoint(_awaited):
        _num_modules = number
        return False
    return True


def is_imported() -> bool:
    """Tell whether an awaited class is there."""
    return sum(1 for _ in _awaited_modules()) < len(_awaited)


def _awaited_modules() -> Iterator[str]:
    for framework in frameworks:
        for base in framework.leaves:
            if isinstance(base, NamedClasses):
                yield from base.awaited()
