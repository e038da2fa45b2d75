"""Language models on a server inside framework objects, whose prompts' texts it can be told of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from rag_accel.engine_api import Message
from rag_accel.engines.http.endpoints import EndpointGate


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


class TextsOfPrompt(Protocol):
    """The texts of one prompt as its server is told of them."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the request's body by name."""
        ...

    def report(self, params: object, cached_tokens: int | None) -> Mapping[str, Any] | None:
        """Return what a whole answer says of its making; None where the server did not say.

        Args:
            params: its ``kv_transfer_params``.
            cached_tokens: of its usage.
        """
        ...

    def streamed(self, cached_tokens: int | None) -> Mapping[str, Any]:
        """Return what a stream says of its making.

        Args:
            cached_tokens: of its usage; None at its beginning.
        """
        ...


class ServedPlace(Protocol):
    """One of several servers, for one call of a program's client."""

    @property
    def base_url(self) -> str:
        """Return the server's base URL."""
        ...

    @property
    def model(self) -> str:
        """Return the model's name there."""
        ...

    @property
    def api_key(self) -> str | None:
        """Return the key that the server is sent, where it is not the program's own server."""
        ...

    @property
    def is_last(self) -> bool:
        """Tell whether no other server is left for the call."""
        ...

    def ended(self) -> None:
        """Record completion or abandonment. Idempotent."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that the call ended so: with an error of the server's, or that nobody waits."""
        ...

    def another(self, error: BaseException) -> ServedPlace | None:
        """Return the server to ask after an error before anything of the answer; None for none."""
        ...


class AskServed(Protocol):
    """A function that tells servers of texts, and chooses among several, for one run."""

    def gate(self) -> EndpointGate | None:
        """Return the way of its calls to their endpoint; None where they are not limited."""
        ...

    def changes_served(self) -> bool:
        """Tell whether calls of models on servers are changed at all."""
        ...

    def place_of(self, prompt: ServedPrompt, model: object) -> ServedPlace | None:
        """Return the server for a prompt; None where it is the program's own alone."""
        ...

    def texts_of(self, prompt: ServedPrompt) -> TextsOfPrompt | None:
        """Return the texts of a prompt; None where it is sent as it is."""
        ...

    def atexts_of(self, prompt: ServedPrompt) -> Awaitable[TextsOfPrompt | None]:
        """Do as ``texts_of`` without blocking the loop."""
        ...


#: Adds a report to what a framework returns.
Add = Callable[[Any, Mapping[str, Any]], None]


class ServedReports:
    """The reports on one call's prompts, as its answers come."""

    def __init__(self) -> None:
        self._reports: list[Mapping[str, Any]] = []

    def put(self, report: Mapping[str, Any] | None) -> None:
        """Take a report, if there is one."""
        if report is not None:
            self._reports.append(report)

    def take(self) -> Mapping[str, Any] | None:
        """Return the first report that was not taken yet."""
        return self._reports.pop(0) if self._reports else None


def tell(reports: ServedReports, found: Any, add: Add) -> Any:
    """Return what a framework's method returned, or a stream of it, with its reports added."""
    if isinstance(found, Iterator):
        return _telling(reports, found, add)
    if hasattr(found, "__aiter__"):
        return _atelling(reports, found, add)
    if isinstance(found, Awaitable):
        return _later(reports, found, add)
    _add(reports, found, add)
    return found


def _add(reports: ServedReports, found: Any, add: Add) -> None:
    report = reports.take()
    if report is not None:
        add(found, report)


def _telling(reports: ServedReports, chunks: Iterator[Any], add: Add) -> Iterator[Any]:
    try:
        for chunk in chunks:
            _add(reports, chunk, add)
            yield chunk
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


async def _atelling(reports: ServedReports, chunks: Any, add: Add) -> Any:
    async with aclosing(chunks):
        async for chunk in chunks:
            _add(reports, chunk, add)
            yield chunk


async def _later(reports: ServedReports, found: Awaitable[Any], add: Add) -> Any:
    return tell(reports, await found, add)
