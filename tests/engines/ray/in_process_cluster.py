"""A cluster whose actors live in this process, and die when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rag_accel.engines.ray.engine import ClusterNode, RayOptions
from rag_accel.engines.replicas.host import EngineHost, EngineSpec
from rag_accel.engines.replicas.processes import HostGoneError

#: Methods of an actor that bring work.
BRINGS_WORK = ("submit", "exchange")
NODE = ClusterNode("here", {"CPU": 8.0, "GPU": 0.0})


class PlainCall:
    """A call that a thread runs."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, timeout_s: float) -> Any:
        return self._future.result(timeout_s)

    def is_done(self) -> bool:
        return self._future.done()


@dataclass
class PlainActor:
    """An actor in this process; ``kill`` ends it as signal 9 would."""

    make: Callable[[], EngineHost]
    restarts: int
    hosts: list[EngineHost] = field(default_factory=list[EngineHost])
    #: called before each method with its name; may raise
    before: Callable[[str], object] = lambda method: None
    is_gone: bool = False
    #: unset while a dead actor is not started again
    may_restart: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(16, "plain-actor")
        self.lock = threading.RLock()
        self.open: set[Future[Any]] = set()
        self.may_restart.set()
        self.hosts.append(self.make())

    def call(self, method: str, *arguments: Any) -> PlainCall:
        promise: Future[Any] = Future()
        with self.lock:
            if self.is_gone:
                promise.set_exception(HostGoneError("dead", is_final=True))
                return PlainCall(promise)
            if not self.may_restart.is_set():
                promise.set_exception(HostGoneError("restarting", is_final=False))
                return PlainCall(promise)
            self.open.add(promise)
            self.pool.submit(self._run, promise, self.hosts[-1], method, arguments)
        return PlainCall(promise)

    def _run(
        self, promise: Future[Any], host: EngineHost, method: str, arguments: tuple[Any, ...]
    ) -> None:
        try:
            self.before(method)
            result = getattr(host, method)(*arguments)
        except BaseException as error:
            self._settle(promise, partial(promise.set_exception, error))
        else:
            self._settle(promise, partial(promise.set_result, result))

    def _settle(self, promise: Future[Any], settle: Callable[[], None]) -> None:
        with self.lock:
            if promise in self.open:
                self.open.discard(promise)
                settle()

    def kill(self) -> None:
        """End the process at once; the cluster starts another one, if it may."""
        with self.lock:
            self.is_gone = self.restarts == 0
            self.restarts -= 1
            dead = self.hosts[-1]
            for promise in self.open:
                promise.set_exception(HostGoneError("killed", is_final=self.is_gone))
            self.open.clear()
            if not self.is_gone:
                self.hosts.append(self.make())
        dead.close()

    def end(self, *, restart: bool) -> None:
        if restart:
            return self.kill()
        with self.lock:
            self.is_gone = True
            for promise in self.open:
                promise.set_exception(HostGoneError("ended", is_final=True))
            self.open.clear()
        self.hosts[-1].close()
        self.pool.shutdown()
        return None


@dataclass
class PlainCluster:
    """A cluster of ``PlainActor``."""

    node_list: Sequence[ClusterNode] = (NODE,)
    actors: list[PlainActor] = field(default_factory=list[PlainActor])

    def host(self, spec: EngineSpec, options: RayOptions) -> PlainActor:
        actor = PlainActor(lambda: EngineHost(spec, options.threads), options.max_restarts)
        self.actors.append(actor)
        return actor

    def nodes(self) -> Sequence[ClusterNode]:
        return self.node_list
