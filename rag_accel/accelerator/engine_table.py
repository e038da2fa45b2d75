"""Which object is which engine, and what is measured of owned engines when they join."""

from __future__ import annotations

import logging
import platform
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from rag_accel.engine_api import (
    BorrowedEngine,
    Document,
    Engine,
    EngineProfile,
    PrimitiveKind,
    RerankBatch,
    TextBatch,
)
from rag_accel.engines.measuring import Payload, ProfileStore, measure
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineLeft, EngineName
from rag_accel.system.processor import cpu_model

# Measure owned engines when they join, once for each kind of engine and machine.

logger = logging.getLogger("rag_accel.profiles")

_SENTENCES = (
    "A batch of passages is measured before the first request comes so that the scheduler knows "
    "how long one takes and how many are worth computing together on the cores that it may use "
    "while other work waits for them and neither side has to guess what the other one costs"
)
_WORDS = tuple(_SENTENCES.split())


class EngineProfiler:
    """The profiles by which engines are driven, measured where that is possible.

    Measured are engines with a ``speed_key`` that embed or rerank, in the calling thread, before
    they join: about 4 x 127 passages of some 65 tokens. What is found is kept on disk.

    Args:
        directory: where profiles are kept; empty to measure nothing and believe every engine.
        cores: what engines may use at most.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(self, directory: str, cores: int) -> None:
        self._cores = cores
        self._store = (
            ProfileStore(Path(directory).expanduser(), _machine(cores)) if directory else None
        )

    def profile_of(self, engine: Engine) -> EngineProfile:
        """Return an engine's profile, with its measured latency and largest efficient batch.

        An engine that fails to be measured is believed: its error comes again where it belongs,
        with the first real work.
        """
        said = engine.profile
        kind = next(iter(said.kinds)) if len(said.kinds) == 1 else None
        payload = _PAYLOADS.get(kind) if kind is not None else None
        if self._store is None or kind is None or payload is None or not said.speed_key:
            return said
        measured = self._store.find(said.speed_key)
        if measured is None:
            threads = max(1, min(said.max_threads, self._cores))
            try:
                measured = measure(engine, kind, payload, threads=threads)
            except Exception as error:
                logger.warning("an engine could not be measured: %r", error)
                return said
            self._store.keep(said.speed_key, measured)
        return replace(said, latency=measured.latency, max_batch=measured.max_batch)


def _machine(cores: int) -> str:
    return f"{cpu_model()}, {cores} cores, Python {platform.python_version()}, torch {_torch()}"


def _torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _passage(number: int) -> str:
    turn = number % len(_WORDS)
    return " ".join((str(number), *_WORDS[turn:], *_WORDS[:turn]))


def _texts(items: int) -> Payload:
    return TextBatch(tuple(map(_passage, range(items))), role="document")


def _ranking(items: int) -> Payload:
    documents = tuple(Document(str(number), _passage(number)) for number in range(items))
    return RerankBatch("How many passages are worth computing together?", documents)


_PAYLOADS: Mapping[PrimitiveKind, Callable[[int], Payload]] = {
    PrimitiveKind.EMBEDDING: _texts,
    PrimitiveKind.RERANKING: _ranking,
}


# Know which object is which engine: owned ones by identity, borrowed ones by name.

_Key = tuple[int, str]

#: borrowed engines without a limit that have a name of their own; a program may make a class for
#: every request
MAX_BORROWED = 1024
OTHERS = "others"


@dataclass(slots=True)
class _Adopted:
    engine: EngineName
    #: keeps an id from meaning another object after its own was collected
    alive: weakref.ref[Any] | None
    #: ids of those whose use this is
    holders: set[int] = field(default_factory=set[int])

    def stands_for(self, obj: Any) -> bool:
        """Tell whether this was made for ``obj``, not for another that had its id before."""
        return self.alive is None or self.alive() is obj


class EngineTable:
    """The engines of one driver by the objects they came from, each once. Thread-safe."""

    def __init__(self, driver: Driver, profiler: EngineProfiler) -> None:
        self._driver = driver
        self._profiler = profiler
        self._lock = threading.Lock()
        self._owned: dict[_Key, _Adopted] = {}
        self._numbers = count(1)
        self._borrowed: dict[str, EngineName] = {}

    def own(
        self, obj: Any, name: str, make: Callable[[], Engine], variant: str, holder: Any
    ) -> EngineName:
        """Return the owned engine that runs ``obj``, made on first use; see ``Accelerator.own``."""
        key = (id(obj), variant)
        while True:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                known = self._join(key, obj, name, make)
            if id(holder) not in known.holders:
                self._hold(key, known, holder)
            # The last holder before this one may have gone meanwhile, and the engine with it.
            if self._owned.get(key) is known:
                return known.engine

    def _join(self, key: _Key, obj: Any, name: str, make: Callable[[], Engine]) -> _Adopted:
        with self._lock:
            known = self._owned.get(key)
            if known is None or not known.stands_for(obj):
                engine = make()
                joined = self._driver.add_engine(
                    f"{name}#{next(self._numbers)}", engine, self._profiler.profile_of(engine)
                )
                known = self._owned[key] = _Adopted(joined, _weak(obj))
            return known

    def _hold(self, key: _Key, known: _Adopted, holder: Any) -> None:
        known.holders.add(id(holder))
        if holder is None:
            return  # nobody's in particular: its engine stays
        try:
            end = weakref.finalize(holder, _let_go, weakref.ref(self), key, known, id(holder))
        except TypeError:  # nobody can tell when it goes: its engine stays
            return
        end.atexit = False

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


def _let_go(table: weakref.ref[EngineTable], key: _Key, known: _Adopted, holder: int) -> None:
    alive = table()
    if alive is not None:
        alive.let_go(key, known, holder)


def _weak(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None
