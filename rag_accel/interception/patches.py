"""Class-level patches of a framework's leaf methods, in effect only inside accelerated runs.

A patched method does what it always did unless the call belongs to an accelerated run. All leaf
classes of the process, those defined meanwhile too, are patched as long as a program needs it:
where a program holds its models, or makes them while it runs, need not be known. What stood there
before is kept in the wrapper itself, so nothing here grows with the number of classes.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity, forget_program
from rag_accel.interception.class_watch import (
    is_imported,
    leaf_classes,
    may_be_imported,
    unwatch,
    watch,
)
from rag_accel.interception.fallback import logger
from rag_accel.interception.identity import Activation, find_identity, find_lender, lent
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    add_framework,
    is_default,
    is_scheduled,
    leaf_methods,
    wrapped_in,
)
from rag_accel.interception.wrappers import wrap
from rag_accel.system.locks import ForkedAnew
from rag_accel.system.methods import is_decorated, mark


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
