"""The beginnings of one request's prompts, prefilled early (``passes/early_prefill.py``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

from rag_accel.engine_api import Document, GenerationInput, ScoredDocument
from rag_accel.graph.growth import InstanceName, stage_of
from rag_accel.graph.primitives import Primitive, PrimitiveName
from rag_accel.leaves.early_beginnings import (
    LEAST_CHARACTERS,
    Count,
    EarlyBeginning,
    num_characters,
)
from rag_accel.requests.prompts import generation_input
from rag_accel.requests.values import Values
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EarlyArrived, EngineName, NodeKey, RequestId

_log = logging.getLogger("rag_accel.requests")


class EarlyPrefills:
    """The beginnings that wait for values, and those that were handed to the scheduler.

    Thread-safe. No code of the user's runs here: a value is read only if it is text or documents.

    Args:
        request: whose prompts they begin; it has arrived before the first of them is begun.
        values: what the request has by now.
        namespace: tenant.
        count: told what became of beginnings.
    """

    def __init__(
        self,
        driver: Driver,
        request: RequestId,
        values: Values,
        namespace: str,
        count: Count,
    ) -> None:
        self._count = count
        self._driver = driver
        self._request = request
        self._values = values
        self._namespace = namespace
        self._lock = Lock()
        self._waiting: dict[PrimitiveName, tuple[Primitive, EngineName, set[str]]] = {}
        #: those that no prompt was compared with, by the run of the stage
        self._begun: dict[InstanceName, EarlyBeginning] = {}

    def expect(self, early: Iterable[tuple[Primitive, EngineName]]) -> None:
        """Take in the beginnings of a region, each with where it is prefilled."""
        with self._lock:
            for primitive, engine in early:
                waited = set[str](primitive.after)
                self._waiting[primitive.name] = (primitive, engine, waited)

    def ended(self, primitive: str) -> None:
        """Begin what waited for a primitive of the request, or for the request itself (``""``)."""
        if not self._waiting:
            return
        due: list[tuple[Primitive, EngineName]] = []
        with self._lock:
            for name, (early, engine, waited) in list(self._waiting.items()):
                waited.discard(primitive)
                if not waited:
                    del self._waiting[name]
                    due.append((early, engine))
        for early, engine in due:
            try:
                self._begin(early, engine)
            except Exception:  # nobody waits for it, so nobody is to fail with it
                _log.exception("the beginning of %s could not be prefilled early", early.stage)

    def look_up(self, primitive: Primitive, payload: Any) -> None:
        """Compare a prompt that is about to be computed with what was begun of it."""
        if not self._begun or not isinstance(payload, GenerationInput):
            return
        with self._lock:
            client = self._begun.pop(primitive.instance, None)
        if client is not None:
            client.settle(payload.messages, primitive.stage, self._count)

    def close(self) -> None:
        """Count what no prompt went on with; the request is over."""
        with self._lock:
            begun, self._begun = self._begun, {}
            self._waiting.clear()
        for instance, client in begun.items():
            client.settle((), stage_of(instance), self._count)

    def _begin(self, early: Primitive, engine: EngineName) -> None:
        if not all(self._values.has(name) for name in early.inputs):
            return
        values = [self._values.read(name) for name in early.inputs]
        if not all(map(is_plain, values)):
            return
        messages = generation_input(early, self._values.read).messages
        if num_characters(messages) < LEAST_CHARACTERS:
            return
        node = NodeKey(self._request, early.name)
        client = EarlyBeginning(messages, self._namespace)
        with self._lock:
            self._begun[early.instance] = client
        self._driver.submit_early(EarlyArrived(node, engine), client)


def is_plain(value: Any) -> bool:
    """Tell whether a value's text is known without running code of the user's."""
    if type(value) in (list, tuple):
        items: Sequence[Any] = value
        return all(map(is_plain, items))
    return type(value) in (str, Document, ScoredDocument)
