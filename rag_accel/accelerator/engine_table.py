"""Engines by the objects they came from: owned ones by identity, borrowed ones by name."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rag_accel.engine_api import BorrowedEngine, Engine, EngineProfile, PrimitiveKind
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineLeft, EngineName
from rag_accel.telemetry.span_attributes import OURS, PROVIDER, attributes_of

_Key = tuple[int, str]

#: borrowed engines without a limit that have a name of their own; a program may make a class for
#: every request
MAX_BORROWED = 1024
OTHERS = "others"


@dataclass(slots=True)
class _Adopted:
    engine: EngineName
    profile: EngineProfile
    #: keeps an id from meaning another object after its own was collected
    alive: weakref.ref[Any] | None
    #: ids of those whose use this is
    holders: set[int] = field(default_factory=set[int])

    def stands_for(self, obj: Any) -> bool:
        """Tell whether this was made for ``obj``, not for another that had its id before."""
        return self.alive is None or self.alive() is obj


class EngineTable:
    """The engines of one driver by the objects they came from, each once. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._owned: dict[_Key, _Adopted] = {}
        self._numbers = count(1)
        self._borrowed: dict[str, EngineName] = {}
        #: of engines that joined by a name, the attributes of their spans
        self.named: dict[str, Mapping[str, Any]] = {}

    def own(
        self, obj: Any, name: str, make: Callable[[], Engine], variant: str, holder: Any
    ) -> EngineName:
        """Return the owned engine that runs ``obj``, made on first use; see ``Accelerator.own``."""
        key = (id(obj), variant)
        while True:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                known = self._join(key, obj, lambda: f"{name}#{next(self._numbers)}", make)
            if id(holder) not in known.holders:
                self._hold(key, known, holder)
            # The last holder before this one may have gone meanwhile, and the engine with it.
            if self._owned.get(key) is known:
                return known.engine

    def add(
        self, obj: Any, name: str, make: Callable[[], Engine]
    ) -> tuple[EngineName, EngineProfile]:
        """Return the engine that runs ``obj``; one made for it has this very name, and stays."""
        key = (id(obj), "")
        known = self._join(key, obj, lambda: name, make)
        self._hold(key, known, None)
        return known.engine, known.profile

    def note(self, obj: Any, engine: EngineName, profile: EngineProfile) -> None:
        """Have later uses of ``obj`` run on an engine that has joined already, and stays."""
        key = (id(obj), "")
        with self._lock:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                known = self._owned[key] = _Adopted(engine, profile, _weak(obj))
                known.holders.add(id(None))

    def is_held(self, obj: Any, variant: str, holder: Any) -> bool:
        """Tell whether a holder has an engine of ``obj``; see ``Accelerator.is_held``."""
        known = self._owned.get((id(obj), variant))
        return known is not None and known.stands_for(obj) and id(holder) in known.holders

    def hold(self, obj: Any, variant: str, holder: Any) -> EngineName | None:
        """Return the engine that runs ``obj`` for one more holder; None if there is none."""
        key = (id(obj), variant)
        known = self._owned.get(key)
        if known is None or not known.stands_for(obj):
            return None
        if id(holder) not in known.holders:
            self._hold(key, known, holder)
        return known.engine if self._owned.get(key) is known else None

    def release(self, obj: Any, variant: str) -> None:
        """Let the engine that runs ``obj`` leave, whoever holds it."""
        known = self._owned.pop((id(obj), variant), None)
        if known is not None:
            self._driver.post(EngineLeft(known.engine))

    def engine_of(self, obj: Any, variant: str = "") -> EngineName | None:
        """Return the engine that runs ``obj``, if there is one."""
        known = self._owned.get((id(obj), variant))
        return None if known is None or not known.stands_for(obj) else known.engine

    def profiles(self) -> dict[EngineName, EngineProfile]:
        """Return the profiles of all owned engines here, by name."""
        with self._lock:
            return {known.engine: known.profile for known in self._owned.values()}

    def attributes_of(self, engine: str) -> Mapping[str, Any]:
        """Return the attributes that spans of an engine's work have."""
        found = dict[str, Any]()
        for known in list(self._owned.values()):
            if known.engine == engine and known.alive is not None:
                found = {PROVIDER: OURS, **attributes_of(known.alive())}
        return {**found, **self.named.get(engine, {})}

    def _join(
        self, key: _Key, obj: Any, name: Callable[[], str], make: Callable[[], Engine]
    ) -> _Adopted:
        with self._lock:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                engine = make()
                joined = self._driver.add_engine(name(), engine)
                known = self._owned[key] = _Adopted(joined, engine.profile, _weak(obj))
            return known

    def _hold(self, key: _Key, known: _Adopted, holder: Any) -> None:
        known.holders.add(id(holder))
        if holder is not None:  # else nobody's in particular: its engine stays
            watch(holder, self, key, known)

    def let_go(self, key: _Key, known: _Adopted, holder: int) -> None:
        """Let an engine leave with its last holder; runs wherever that is collected: no locks."""
        known.holders.discard(holder)
        if not known.holders and self._owned.get(key) is known:
            del self._owned[key]
            self._driver.post(EngineLeft(known.engine))

    def borrow(self, name: str, kind: PrimitiveKind, max_concurrency: int | None) -> EngineName:
        """Return the borrowed engine of this name, joined on first use."""
        known = self._borrowed.get(name)
        if known is not None:
            return known
        with self._lock:
            if max_concurrency is None and len(self._borrowed) >= MAX_BORROWED:
                name = OTHERS
            if name not in self._borrowed:
                engine = BorrowedEngine(name, frozenset({kind}), max_concurrency)
                self._borrowed[name] = self._driver.add_borrowed(engine)
            return self._borrowed[name]


def watch(holder: Any, table: Any, *use: object) -> bool:
    """Have a table forget a use with its holder; False if nobody can tell when that goes."""
    try:
        end = weakref.finalize(holder, _let_go, weakref.ref(table), *use, id(holder))
    except TypeError:
        return False
    end.atexit = False
    return True


def _let_go(table: weakref.ref[Any], *use: object) -> None:
    """Let a table forget a use of something, whose holder is gone, if it is there itself."""
    alive = table()
    if alive is not None:
        alive.let_go(*use)


def _weak(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None
