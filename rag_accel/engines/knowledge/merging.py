"""Merges of edits into a graph, in a thread that exists only while there is something to merge."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any, Protocol

from rag_accel.engines.knowledge.base import GraphBase
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.version import GraphVersion

_logger = logging.getLogger(__name__)


class MergedGraph(Protocol):
    """A graph whose edits are merged."""

    lock: Any
    """What an edit holds; a fork waits for it."""

    def next_merge(self) -> tuple[GraphVersion, Edits] | None:
        """Return a version with the edits in it; None where there is nothing left to merge."""
        ...

    def install(self, version: GraphVersion, edits: Edits, base: GraphBase) -> None:
        """Put a merged version in the place of the base that it was made of."""
        ...

    def renew_after_fork(self) -> None:
        """Replace the locks that other threads may have held in the parent."""
        ...


class MergeThread:
    """The thread that merges the edits of a graph, one after the other. Used under its lock."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        #: edits that began the first merge that failed since one did not, 0 if none; the thread's
        self.failed_at = 0

    @property
    def is_running(self) -> bool:
        """Tell whether it merges; in a forked child it does not."""
        return self._thread is not None and self._thread.is_alive()

    def forget(self) -> None:
        """Note that nothing is left to merge."""
        self._thread = None

    def start(self, graph: MergedGraph, num: int) -> None:
        """Merge ``num`` edits. A graph that nobody holds any more is not kept for it."""
        thread = threading.Thread(
            target=self._merge,
            args=(weakref.ref(graph), num),
            name="rag-accel-graph-merge",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next edit tries again
            _logger.warning("a knowledge graph's edits are not merged: no thread", exc_info=True)
            self.failed_at = self.failed_at or num
        else:
            self._thread = thread

    def _merge(self, reference: weakref.ref[MergedGraph], num: int) -> None:
        try:
            while (work := _next(reference)) is not None:
                version, edits = work
                base = version.merged()
                graph = reference()
                if graph is None:
                    return
                graph.install(version, edits, base)
                del graph, work, version, edits, base
        except BaseException:
            self.failed_at = self.failed_at or num
            # Nothing is lost: the edits stay over the base that there was.
            _logger.exception(
                "a knowledge graph's edits could not be merged; the next edit tries again"
            )


def _next(reference: weakref.ref[MergedGraph]) -> tuple[GraphVersion, Edits] | None:
    graph = reference()
    return None if graph is None else graph.next_merge()


_graphs = weakref.WeakSet[Any]()
_forking = threading.local()


def follow_forks(graph: MergedGraph) -> None:
    """Let a fork wait until no edit is under way, and give the child's graph free locks."""
    _graphs.add(graph)


def _before_fork() -> None:
    held: list[Any] = []
    _forking.held = held
    for graph in list(_graphs):
        graph.lock.acquire()
        held.append(graph.lock)


def _release() -> None:
    held: list[Any] = getattr(_forking, "held", [])
    while held:
        held.pop().release()


def _after_in_child() -> None:
    _release()
    for graph in list(_graphs):
        graph.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_release, after_in_child=_after_in_child
    )
