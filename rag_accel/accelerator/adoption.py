"""Know which object is which engine: owned ones by identity, borrowed ones by name."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from rag_accel.engine_api import BorrowedEngine, Engine, PrimitiveKind
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineName


@dataclass(slots=True)
class _Adopted:
    engine: EngineName
    #: keeps an id from meaning another object after its own was collected
    alive: weakref.ref[Any] | None

    def stands_for(self, obj: Any) -> bool:
        """Tell whether this was made for ``obj``, not for another that had its id before."""
        return self.alive is None or self.alive() is obj


class Adoption:
    """Let objects join one driver as engines, each once; from any thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._owned: dict[tuple[int, str], _Adopted] = {}
        self._numbers = count(1)
        self._borrowed: dict[str, EngineName] = {}

    def own(self, obj: Any, name: str, make: Callable[[], Engine], variant: str) -> EngineName:
        """Return the owned engine that runs ``obj``, made on first use."""
        key = (id(obj), variant)
        known = self._owned.get(key)
        if known is not None and known.stands_for(obj):
            return known.engine
        with self._lock:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                engine = self._driver.add_engine(f"{name}#{next(self._numbers)}", make())
                known = self._owned[key] = _Adopted(engine, _weak(obj))
            return known.engine

    def borrow(self, name: str, kind: PrimitiveKind, max_concurrency: int | None) -> EngineName:
        """Return the borrowed engine of this name, joined on first use."""
        known = self._borrowed.get(name)
        if known is not None:
            return known
        with self._lock:
            if name not in self._borrowed:
                engine = BorrowedEngine(name, frozenset({kind}), max_concurrency)
                self._borrowed[name] = self._driver.add_borrowed(engine)
            return self._borrowed[name]


def _weak(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None
