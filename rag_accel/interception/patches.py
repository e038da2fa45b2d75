"""Class-level patches of a framework's leaf methods, in effect only inside accelerated runs.

A patched method does what it always did unless the call belongs to an accelerated run. All leaf
classes of the process, those defined meanwhile too, are patched as long as a program needs it:
where a program holds its models, or makes them while it runs, need not be known. What stood there
before is kept in the wrapper itself, so nothing here grows with the number of classes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity, forget_program
from rag_accel.interception.fallback import logger
from rag_accel.interception.identity import Activation, find_identity, find_lender, lent
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    add_framework,
    frameworks,
    is_default,
    is_scheduled,
    leaf_methods,
    wrapped_in,
)
from rag_accel.interception.wrappers import wrap
from rag_accel.system.classes import NamedClasses
from rag_accel.system.locks import ForkedAnew
from rag_accel.system.methods import is_decorated, mark

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


def _hear_of(cls: type) -> None:
    """Patch a leaf class that was just defined, and those imported before it."""
    _patch(cls)
    if may_be_imported():
        patches.look_again()


def _find(obj: Any) -> RequestIdentity | None:
    if may_be_imported():
        patches.look_again()
    identity = find_identity()
    return find_lender(obj) if identity is None and lent else identity


#: Where a method keeps its wrapper while it is not patched.
_KEPT = "__rag_accel_wrapper__"


@dataclass(frozen=True, slots=True)
class _Kept:
    """An original method and its data; ``functools.wraps`` may copy it to another."""

    method: Any
    leaf: LeafMethod
    wrapper: Any


class Patches(ForkedAnew):
    """The leaf methods of all classes, patched while any ``Interception`` needs them."""

    def __init__(self) -> None:
        super().__init__()
        self._users: dict[object, None] = {}
        self._stand = False

    def renew(self) -> None:
        # Re-entrant: a program may be collected, and so release, while its thread patches.
        self._lock = threading.RLock()

    def acquire(self) -> object:
        """Patch unless others have; return a use, to be given back with ``release``."""
        use = object()
        with self._lock:
            try:
                self._users[use] = None
                if not self._stand:
                    self._patch_all()
                    self._stand = True
            except BaseException:  # an interrupt: nobody would give it back
                self.release(use)
                raise
        return use

    def release(self, use: object) -> None:
        """Give a use back; restore the original if it was the last."""
        with self._lock:
            self._users.pop(use, None)
            if not self._users:
                self._stand = False
                unwatch()
                # Where other code replaced ours, its method stays; ours lets calls from it through.
                for cls, name in self.patched():
                    setattr(cls, name, wrapped_in(cls, name))

    def extend(self, framework: Framework) -> None:
        """Patch a framework's leaves, too, whenever patches are needed."""
        with self._lock:
            add_framework(framework)
            if self._stand:
                self._patch_all()

    def look_again(self) -> None:
        """Patch what is known by name and was imported since; the next call asks again.

        Never waits: whoever imports may hold what a thread that patches waits for.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._stand and is_imported():
                self._patch_all()
        finally:
            self._lock.release()

    def _patch_all(self) -> None:
        watch(_hear_of)
        for cls in leaf_classes():
            _patch(cls)

    def patched(self) -> list[tuple[type, str]]:
        """Return the methods patched now."""
        found: dict[tuple[type, str], None] = {}
        for cls in leaf_classes():
            for leaf in () if is_scheduled(cls) else leaf_methods(cls):
                definer = _definer(cls, leaf.name)
                if definer is not None and wrapped_in(definer, leaf.name) is not None:
                    found[definer, leaf.name] = None
        return list(found)


patches = Patches()


def intercept(framework: Framework) -> None:
    """Know a framework's leaves from now on, also where patches stand already."""
    patches.extend(framework)


class Interception:
    """A hold on the patches for as long as this object, or a copy of it, lives.

    Args:
        program: what is forgotten with it.
    """

    def __init__(self, program: str = "") -> None:
        weakref.finalize(self, _let_go, patches.acquire(), program).atexit = False

    def __copy__(self) -> Interception:
        return self

    def __deepcopy__(self, memo: object) -> Interception:
        return self


def _let_go(use: object, program: str) -> None:
    patches.release(use)
    if program:
        forget_program(program)


def _places_of(cls: type) -> Iterator[tuple[type, LeafMethod]]:
    for leaf in () if is_scheduled(cls) else leaf_methods(cls):
        definer = _definer(cls, leaf.name)
        if definer is None or (leaf.sync is None and is_default(cls, leaf)):
            continue
        # What stands there as something else than a method, a static one say, is left alone.
        method = definer.__dict__[leaf.name]
        if getattr(definer, leaf.name) is method or is_decorated(method):
            yield definer, leaf


def _definer(cls: type, name: str) -> type | None:
    """Return the class in which a method is defined that ``cls`` has."""
    for definer in cls.__mro__:
        if name in definer.__dict__:
            return definer
    return None


def _patch(cls: type) -> None:
    """Patch a class of any origin: one that cannot be patched harms no other program."""
    try:
        for definer, leaf in _places_of(cls):
            if wrapped_in(definer, leaf.name) is None:
                setattr(definer, leaf.name, _gated(definer, leaf))
    except Exception as error:
        logger.debug("calls of %s are not scheduled: %s", cls.__qualname__, repr(error))


def _gated(cls: type, leaf: LeafMethod) -> Any:
    """Return the wrapper of a method that is defined in ``cls``.

    The method keeps it: making one takes 50 us, and a service may accelerate for every request. It
    goes with its method, which it holds, as a table of them would not let it.
    """
    method = cls.__dict__[leaf.name]
    kept = getattr(method, _KEPT, None)
    if kept is not None and kept.method is method and kept.leaf is leaf:
        return kept.wrapper
    wrapper = wrap(cls, leaf, _find)
    assert wrapper is not None, "only methods that do work are patched"
    if is_decorated(method):  # to be put back as it stood there, not as the class gives it
        mark(wrapper, method)
    with contextlib.suppress(AttributeError, TypeError):  # compiled ones keep nothing
        setattr(method, _KEPT, _Kept(method, leaf, wrapper))
    return wrapper


@contextmanager
def activate(accelerator: Accelerator | None = None) -> Iterator[Accelerator]:
    """Schedule every leaf called while the block runs, whatever made it and where.

    Covers all threads and tasks of the process and all leaf classes, those defined in the block
    too. A program accelerated by ``accelerate`` stays a request of its own; a leaf called outside
    any such program is one. Blocks may be nested, also with different accelerators, and opened by
    several threads: a call belongs to the innermost block around it, else to the one opened last.

    Raises:
        ConfigError: ``accelerator`` is of another type.
    """
    block = Activation(accelerator)
    use = patches.acquire()
    try:
        block.open()
        try:
            yield block.accelerator
        finally:
            block.close()
    finally:
        patches.release(use)
