"""The beginnings of one request's prompts, prefilled early (``passes/early_prefill.py``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    PrimitiveKind,
    PromptUse,
    ScoredDocument,
    WorkId,
)
from rag_accel.graph.growth import InstanceName, stage_of
from rag_accel.graph.primitives import Primitive, PrimitiveName
from rag_accel.passes.split_prefill import CHARACTERS_PER_TOKEN, LEAST_TOKENS
from rag_accel.requests.prompts import generation_input
from rag_accel.requests.values import Values
from rag_accel.scheduler.driver import Driver, Result
from rag_accel.scheduler.messages import EarlyArrived, EngineName, NodeKey, Outcome, RequestId

#: a shorter beginning costs more than it brings
_LEAST_CHARACTERS: Final = LEAST_TOKENS * CHARACTERS_PER_TOKEN
_log = logging.getLogger("rag_accel.requests")


class Count(Protocol):
    """A counter of what happens to stages, such as ``retries``."""

    def __call__(self, what: str, stage: str, amount: int = 1) -> None:
        """Count something that happened to a stage."""
        ...


class EarlyPrefills:
    """The beginnings that wait for values, and those that were handed to the scheduler.

    Thread-safe. No code of the user's runs here: a value is read only if it is text or documents.

    Args:
        request: whose prompts they begin; it has arrived before the first of them is begun.
        values: what the request has by now.
        namespace: tenant.
        count: told of prompts that went on with a beginning (``early_hits``), of beginnings that
            no prompt went on with (``early_misses``), and of the tokens computed for these
            (``early_wasted_tokens``).
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
        self._begun: dict[InstanceName, _Client] = {}

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
            self._settle(primitive.stage, client, client.is_beginning_of(payload))

    def close(self) -> None:
        """Count what no prompt went on with; the request is over."""
        with self._lock:
            begun, self._begun = self._begun, {}
            self._waiting.clear()
        for instance, client in begun.items():
            self._settle(stage_of(instance), client, False)

    def _settle(self, stage: str, client: _Client, is_hit: bool) -> None:
        if not client.has_begun:
            return
        self._count("early_hits" if is_hit else "early_misses", stage)
        if not is_hit and client.use is not None:
            self._count("early_wasted_tokens", stage, client.use.computed)

    def _begin(self, early: Primitive, engine: EngineName) -> None:
        if not all(self._values.has(name) for name in early.inputs):
            return
        values = [self._values.read(name) for name in early.inputs]
        if not all(map(_is_plain, values)):
            return
        payload = generation_input(early, self._values.read)
        if sum(len(message.content) for message in payload.messages) < _LEAST_CHARACTERS:
            return
        node = NodeKey(self._request, early.name)
        client = _Client(payload, self._namespace)
        with self._lock:
            self._begun[early.instance] = client
        self._driver.submit_early(EarlyArrived(node, engine), client)


@dataclass(slots=True)
class _Client:
    """The driver's client of one beginning, for which nobody waits."""

    payload: GenerationInput
    namespace: str
    has_begun: bool = False
    #: set once all of it is computed
    use: PromptUse | None = None

    def is_beginning_of(self, whole: GenerationInput) -> bool:
        """Tell whether a prompt goes on with it."""
        mine, theirs = self.payload.messages, whole.messages[: len(self.payload.messages)]
        if mine[:-1] != theirs[: len(mine) - 1] or len(theirs) < len(mine):
            return False
        return theirs[-1].content.startswith(mine[-1].content) and mine[-1].role == theirs[-1].role

    def request(self, node: NodeKey) -> EngineRequest:
        self.has_begun = True
        return EngineRequest(
            id=WorkId(f"{node.request}/{node.node}"),
            request_id=str(node.request),
            kind=PrimitiveKind.PARTIAL_PREFILLING,
            payload=self.payload,
            namespace=self.namespace,
        )

    def granted(self, node: NodeKey) -> None:
        raise AssertionError("early work runs on owned engines")

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Ignore increments."""

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Learn what was computed; the beginning stays where the engine keeps it."""
        if result is not None and isinstance(result.value, PromptUse):
            self.use = result.value


def _is_plain(value: Any) -> bool:
    """Tell whether a value's text is known without running code of the user's."""
    if type(value) in (list, tuple):
        items: Sequence[Any] = value
        return all(map(_is_plain, items))
    return type(value) in (str, Document, ScoredDocument)
