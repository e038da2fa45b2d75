"""Prefetch hints from searches to the engines that prefetch documents."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable
from itertools import islice

from rag_accel.engine_api import Capability, Engine, ForgettingEngine
from rag_accel.scheduler.messages import EngineName

_log = logging.getLogger("rag_accel.scheduler")

#: The most texts of one hint.
MOST_TEXTS = 64


class HintedEngines:
    """The engines of a driver that make use of hints, and those that keep texts.

    Any thread may use it.

    Args:
        failed: told of an engine whose hint raised; None where the texts could not be read.
    """

    def __init__(self, failed: Callable[[EngineName | None], None]) -> None:
        self._failed = failed
        self._lock = threading.Lock()
        #: those that make use of hints; always another tuple, which is read without the lock
        self.engines: tuple[tuple[EngineName, Engine], ...] = ()
        self._keeping: tuple[tuple[EngineName, ForgettingEngine], ...] = ()

    def join(self, name: EngineName, engine: Engine) -> None:
        """Send hints to an engine from now on, if its profile says that it makes use of them."""
        if isinstance(engine, ForgettingEngine):
            with self._lock:
                self._keeping = (*self._keeping, (name, engine))
        if Capability.HINT in engine.profile.capabilities:
            with self._lock:
                self.engines = (*self.engines, (name, engine))

    def leave(self, name: EngineName) -> None:
        """Send no more hints to an engine."""
        with self._lock:
            self._keeping = tuple(engine for engine in self._keeping if engine[0] != name)
            self.engines = tuple(engine for engine in self.engines if engine[0] != name)

    def send(
        self, texts: Iterable[str], namespace: str, to: Container[EngineName] | None = None
    ) -> None:
        """Tell engines of texts likely to stand in a prompt soon; never raises.

        Args:
            texts: of documents, of which the first ``MOST_TEXTS`` count.
            namespace: tenant.
            to: the engines that are told; None for all.
        """
        try:
            documents = tuple(islice(texts, MOST_TEXTS))
        except Exception:  # of the caller's own documents; the request goes on without a hint
            _log.exception("documents could not be read for a hint")
            self._failed(None)
            return
        for name, engine in self.engines if documents else ():
            if to is not None and name not in to:
                continue
            try:
                engine.hint(documents, namespace)
            except Exception:  # a hint is never needed
                _log.exception("engine %s failed to take a hint", name)
                self._failed(name)

    @property
    def keeps_texts(self) -> bool:
        """Tell whether an engine keeps what it has computed of documents."""
        return bool(self._keeping)

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Have every engine remove what it keeps of texts; an engine that fails is logged."""
        documents = tuple(texts)
        for name, engine in self._keeping:
            try:
                engine.forget(documents, namespace)
            except Exception:  # the document is gone all the same
                _log.exception("engine %s failed to forget texts", name)
                self._failed(name)
