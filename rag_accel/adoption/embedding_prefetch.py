"""Texts embedded ahead of the calls that take their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from rag_accel.accelerator import RequestIdentity
from rag_accel.interception.fallback import CALLER_ERRORS
from rag_accel.interception.identity import scoped
from rag_accel.leaves.submitted_work import SubmittedWork
from rag_accel.recognition.embeddings import AdoptedEmbeddings

Place = tuple[int, int]


class EmbeddingPrefetch:
    """Documents submitted to an engine at once, while a method asks for them in parts.

    Args:
        identity: the run that handed them over.
        adopted: how an engine runs the object.
        holder: the object.
        pieces: the texts, piece by piece.
        handed: the pieces as works, in the same order.
        on_loop: whether they were handed over by a task.
    """

    def __init__(
        self,
        identity: RequestIdentity,
        adopted: AdoptedEmbeddings,
        holder: Any,
        pieces: Sequence[Sequence[str]],
        handed: SubmittedWork,
        on_loop: bool,
    ) -> None:
        self._identity = identity
        self._adopted = adopted
        self._holder = holder
        self._handed = handed
        self._on_loop = on_loop
        self._is_closed = False
        self._places: dict[str, Place] = {
            text: (at, row) for at, piece in enumerate(pieces) for row, text in enumerate(piece)
        }

    def is_of(self, identity: RequestIdentity, adopted: AdoptedEmbeddings, holder: Any) -> bool:
        """Tell whether a call of an object would be computed as these texts are."""
        return (
            holder is self._holder
            and identity.accelerator is self._identity.accelerator
            and adopted.model is self._adopted.model
            and adopted.variant == self._adopted.variant
        )

    def take(self, texts: Sequence[str]) -> list[list[float]] | None:
        """Return one vector per text once they are there; None if they are to be computed again.

        Raises what the limits of the run raise.
        """
        places = self._places_of(texts)
        if places is None:
            return None
        try:
            parts = {at: self._handed.value(at) for at in _pieces(places)}
        except Exception as error:
            self._pass_on(error)
            return None
        return _rows(parts, places)

    async def atake(self, texts: Sequence[str]) -> list[list[float]] | None:
        """Do as ``take`` without blocking the loop."""
        places = self._places_of(texts)
        if places is None:
            return None
        try:
            parts = {at: await self._handed.avalue(at) for at in _pieces(places)}
        except Exception as error:
            self._pass_on(error)
            return None
        return _rows(parts, places)

    def close(self) -> None:
        """Cancel unfinished texts; from now on nothing can be taken.

        On a loop they are cancelled once all has been submitted that it still gathers.
        """
        self._is_closed = True
        if self._on_loop:
            with suppress(RuntimeError):  # a coroutine that is closed after its loop
                asyncio.get_running_loop().call_soon(self._handed.cancel)
                return
        self._handed.cancel()

    def _places_of(self, texts: Sequence[str]) -> list[Place] | None:
        if self._is_closed:
            return None
        places = [self._places.get(text) for text in texts]
        return None if None in places else [place for place in places if place is not None]

    def _pass_on(self, error: Exception) -> None:
        """Raise an error that is the caller's own; what failed may have been another text."""
        # A task that goes on after the method has ended finds its work cancelled.
        goes_on = self._is_closed and not self._identity.has_ended
        if isinstance(error, CALLER_ERRORS) and not goes_on:
            raise error


def _pieces(places: Sequence[Place]) -> list[int]:
    return sorted({at for at, _ in places})


def _rows(parts: dict[int, Any], places: Sequence[Place]) -> list[list[float]]:
    return [parts[at][row].tolist() for at, row in places]


#: the texts that were handed over before the calls made in this context
current_prefetch: ContextVar[EmbeddingPrefetch | None] = ContextVar(
    "rag_accel_embedding_prefetch", default=None
)


@contextmanager
def taking_from(ahead: EmbeddingPrefetch | None) -> Iterator[None]:
    """Have calls in a block take vectors from texts handed over, if any were; close them after."""
    if ahead is None:
        yield
        return
    try:
        with scoped(current_prefetch, ahead):
            yield
    finally:
        ahead.close()


def find_ahead(
    identity: RequestIdentity, adopted: AdoptedEmbeddings, holder: Any
) -> EmbeddingPrefetch | None:
    """Return the texts that were handed over for calls of an object in this context, if any."""
    ahead = current_prefetch.get()
    return ahead if ahead is not None and ahead.is_of(identity, adopted, holder) else None
