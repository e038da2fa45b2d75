"""Language models on servers inside framework objects: the hooks of their calls, and reports."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rag_accel.adoption.generation import Report
from rag_accel.engine_api import Message
from rag_accel.engine_api.transient import is_doubtful, is_transient, retry_after_s
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.engines.replicas.pool_placement import Failure, PoolPlacement, why_of
from rag_accel.kv.reuse_request import ReuseRequest
from rag_accel.kv.served_prompts import answered_texts, served_report


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """One prompt that is about to be sent to a server.

    Args:
        base_url: of the server.
        messages: roles and texts; of a prompt without roles one of the user's.
        get_models: returns the JSON value of its ``/models``, sent as the prompt will be.
    """

    base_url: str
    messages: tuple[Message, ...]
    get_models: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of one prompt, for the server that it is sent to.

    Args:
        request: names them.
        note: records whether an answer said how these texts were computed.
    """

    request: ReuseRequest
    note: Callable[[bool, Sequence[str]], None]

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the request's body by name."""
        return self.request.fields()

    def report(self, params: object, cached_tokens: int | None) -> Mapping[str, Any] | None:
        """Return what a whole answer says of its making; None where the server did not say.

        Args:
            params: its ``kv_transfer_params``.
            cached_tokens: of its usage.
        """
        said = answered_texts(params)
        self.note(said is not None, self.request.texts)
        if said is None:
            return None
        return {"kv_reuse": served_report(self.request.reuse, said, cached_tokens)}

    def streamed(self, cached_tokens: int | None) -> Mapping[str, Any]:
        """Return what a stream says of its making: first what was asked for, then the tokens."""
        if cached_tokens is not None:
            return {"kv_reuse": {"cached_tokens": cached_tokens}}
        return {"kv_reuse": {"mode": self.request.reuse, "texts": len(self.request.texts)}}


class ServedPlace:
    """One of the servers of a model, for one call of a program's client.

    Args:
        placement: chooses among the servers.
        servers: each with its ``base_url``, and the ``model`` and ``api_key`` that it is sent.
        at: which one.
        keys: by which they know the prompt.
        tried: those that have failed it.
    """

    def __init__(
        self,
        placement: PoolPlacement,
        servers: Sequence[Any],
        at: int,
        keys: Mapping[Hashable, int],
        tried: frozenset[int],
    ) -> None:
        self.base_url: str = servers[at].base_url
        self.api_key: str | None = servers[at].api_key
        self.model: str = servers[at].model or ""
        #: whether no other server is left for the call
        self.is_last = len(tried) + 1 >= len(servers)
        self._placement, self._servers = placement, servers
        self._at, self._keys, self._tried = at, keys, tried
        self._began = placement.clock.now()
        #: a server that has failed the call, whose failure is its own if this one answers
        self._doubt: tuple[int, Failure] | None = None
        self._lock = threading.Lock()
        self._is_over = False

    @classmethod
    def take(
        cls,
        placement: PoolPlacement,
        servers: Sequence[Any],
        keys: Mapping[Hashable, int],
        tried: frozenset[int] = frozenset(),
    ) -> ServedPlace | None:
        """Return the server to ask that is not among the tried ones; None if none is left."""
        at = placement.take(keys, 1, tried)
        return None if at is None else cls(placement, servers, at, keys, tried)

    def ended(self) -> None:
        """Record completion or abandonment. Idempotent."""
        if self._ends():
            self._placement.left(self._at, 1)
            self._placement.succeeded(self._at, 1, self._placement.clock.now() - self._began)
            self._decide(is_own=True)

    def failed(self, error: BaseException) -> None:
        """Record that the call ended with an error of the server's, or that nobody waits."""
        if self._ends():
            self._placement.left(self._at, 1)
            if is_transient(error):
                self._placement.failed(self._at, self._failure(error))
            self._decide(is_own=False)

    def another(self, error: BaseException) -> ServedPlace | None:
        """Return the server to ask after an error before anything of the answer; None for none.

        After an error that may be this server's or the call's, one other server tells which.
        """
        is_doubted = not is_transient(error) and self._doubt is None and is_doubtful(error)
        if not (is_doubted or is_transient(error)):
            self.failed(error)
            return None
        found = self.take(self._placement, self._servers, self._keys, self._tried | {self._at})
        if found is not None:
            found._doubt, self._doubt = self._doubt, None
        if found is not None and is_doubted and self._ends():
            found._doubt = (self._at, self._failure(error))
        else:
            self.failed(error)
        return found

    def _failure(self, error: BaseException) -> Failure:
        now = self._placement.clock.now()
        return Failure(self._began, now, why_of(error), retry_after_s(error))

    def _decide(self, is_own: bool) -> None:
        """Pause the server in doubt if the failure was its own; it has the call no longer."""
        if self._doubt is None:
            return
        (at, failure), self._doubt = self._doubt, None
        self._placement.left(at, 1)
        if is_own:
            self._placement.failed(at, failure)

    def _ends(self) -> bool:
        """Tell whether the call ends with this for the first time."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        return is_first


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """The questions of an adopted client of a server before a call.

    Args:
        route: returns the server for a prompt and a model's name; None where it is the program's
            own alone.
        annotate: returns the texts of a prompt; None where it is sent as it is.
        aannotate: does so without blocking the loop.
        gate: returns the way of calls to their endpoint; None where they are not limited.
    """

    route: Callable[[ServedPrompt, object], ServedPlace | None]
    annotate: Callable[[ServedPrompt], PromptTexts | None]
    aannotate: Callable[[ServedPrompt], Awaitable[PromptTexts | None]]
    gate: Callable[[], EndpointGate | None]


#: Reports on one call's prompts, as its answers come; the first one is taken first.
Reports = list[Report]
#: Adds a report to what a framework returns.
Add = Callable[[Any, Report], None]


def with_reports(reports: Reports, found: Any, add: Add) -> Any:
    """Return what a framework's method returned, or a stream of it, with its reports added."""

    def tell(item: Any) -> None:
        if reports:
            add(item, reports.pop(0))

    return telling(found, tell)


def telling(found: Any, tell: Callable[[Any], object]) -> Any:
    """Return what a framework's method returned, each item of a stream or the whole told first."""
    if isinstance(found, Iterator):
        return _stream_telling(found, tell)
    if hasattr(found, "__aiter__"):
        return _astream_telling(found, tell)
    if isinstance(found, Awaitable):
        return _later_telling(found, tell)
    tell(found)
    return found


def _stream_telling(items: Iterator[Any], tell: Callable[[Any], object]) -> Iterator[Any]:
    try:
        for item in items:
            tell(item)
            yield item
    finally:
        if isinstance(items, Generator):
            items.close()


async def _astream_telling(items: Any, tell: Callable[[Any], object]) -> Any:
    async with aclosing(items):
        async for item in items:
            tell(item)
            yield item


async def _later_telling(found: Awaitable[Any], tell: Callable[[Any], object]) -> Any:
    return telling(await found, tell)
