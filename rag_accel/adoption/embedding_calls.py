"""Texts of recognised embeddings objects on an owned engine, batched across requests."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from rag_accel.accelerator import Accelerator, RequestIdentity, Work
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.accelerator.program_embedders import PlacedModel
from rag_accel.adoption.embeddings import AdoptedEmbeddings, AskByGate
from rag_accel.adoption.endpoint_gates import gate_for
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.embedding.hosted_engine import AskAloneError, ServerAnswer, ServerTexts
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.interception.fallback import CALLER_ERRORS
from rag_accel.interception.identity import scoped
from rag_accel.leaves.submitted_work import SubmittedWork
from rag_accel.scheduler.messages import EngineName
from rag_accel.telemetry.shared_spans import callers_span

HOSTED = "its server computes its vectors"
NOT_KNOWN = "no engine of this library computes what it does"


def on_devices(
    accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any
) -> PlacedModel | None:
    """Return where several devices embed for an object; None for its usual engine."""
    embedders = accelerator.embedders
    if adopted.encoding is None or not embedders.has_devices(adopted.devices):
        return None
    return embedders.engine(adopted.encoding, holder, adopted.devices)


def usual_engine(accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any) -> EngineName:
    """Return the engine of a model that computes here, on its own device."""
    make = partial(adopted.make, accelerator.options)
    return accelerator.own(adopted.model, "embedding", make, adopted.variant, holder)


def prepared_engine(
    accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any
) -> EngineAt | None:
    """Return what embeds for an object now, and begin to place its model; None for a server."""
    if adopted.hosted is not None:
        return None
    placed = on_devices(accelerator, adopted, holder)
    engine = usual_engine(accelerator, adopted, holder) if placed is None else placed.engine
    return accelerator, engine


def describe(adopted: AdoptedEmbeddings, accelerator: Accelerator) -> str:
    """Return how a recognised object runs on an accelerator."""
    return adopted.describe(accelerator.options) + described_devices(adopted, accelerator)


def described_devices(adopted: AdoptedEmbeddings, accelerator: Accelerator) -> str:
    """Return what follows on how an object runs where devices are listed, else nothing."""
    embedders = accelerator.embedders
    if not embedders.has_devices(adopted.devices):
        return ""
    if adopted.encoding is None:
        return f"; not on the listed devices: {HOSTED}"
    return f"; {embedders.describe(adopted.encoding, adopted.devices)}"


def describe_unused(accelerator: Accelerator) -> str:
    """Return what is to be said of an embeddings object that was not recognised."""
    return (
        f"; not on the listed devices: {NOT_KNOWN}" if accelerator.embedders.has_devices() else ""
    )


def warn_unused(accelerator: Accelerator, cls: type, adopted: AdoptedEmbeddings | None) -> None:
    """Say once for a class of embeddings that the devices listed are of no use to it."""
    if accelerator.embedders.has_devices() and (adopted is None or adopted.encoding is None):
        why = NOT_KNOWN if adopted is None else HOSTED
        accelerator.embedders.warn_unused(cls, why)


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


Role = Literal["query", "document"]
Vectors = list[list[float]]


@dataclass(frozen=True, slots=True)
class AskAlone:
    """The answer to a caller that shall call its server by itself, after a wait.

    Args:
        delay_s: the wait.
        attempts: those that the shared call has made.
    """

    delay_s: float
    attempts: int


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """One call of a recognised object, or of a component.

    Args:
        identity: the run it belongs to.
        adopted: how an engine runs the object.
        holder: the object; its engine lives as long as it does.
        texts: what to embed.
        role: what the texts are.
        one: whether the caller wants the vector of a single text.
    """

    identity: RequestIdentity
    adopted: AdoptedEmbeddings
    holder: Any
    texts: Sequence[str]
    role: Role
    one: bool = False

    def embed(self) -> Any:
        """Return one vector per text, in order, or the only one; computed on the engine."""
        texts, ahead = self._prepared(), self._ahead()
        vectors = None if ahead is None else ahead.take(texts)
        if vectors is None:
            leaves, work_items = self.identity.accelerator.leaves, self._works(texts)
            if self.adopted.shows_progress:
                with self._handed(work_items) as handed:
                    vectors = _joined(handed.value(at) for at in _with_bar(len(work_items)))
            else:
                vectors = _joined(leaves.compute_all(self.identity, work_items))
        return vectors[0] if self.one else vectors

    async def aembed(self) -> Any:
        """Do as ``embed`` without blocking the loop."""
        texts, ahead = self._prepared(), self._ahead()
        vectors = None if ahead is None else await ahead.atake(texts)
        if vectors is None:
            identity, work_items = self.identity, self._works(texts)
            leaves = identity.accelerator.leaves
            if self.adopted.shows_progress:
                with self._handed(work_items, on_loop=True) as handed:
                    parts = [await handed.avalue(at) for at in _with_bar(len(work_items))]
            elif len(work_items) == 1:  # no task for the usual case
                parts = [await leaves.acompute(identity, work_items[0])]
            else:
                parts = await asyncio.gather(*map(partial(leaves.acompute, identity), work_items))
            vectors = _joined(parts)
        return vectors[0] if self.one else vectors

    def embed_or_alone(self) -> Any:
        """Compute on the engine; an ``AskAlone`` where the call that was shared has failed."""
        try:
            return self.embed()
        except AskAloneError as error:
            return AskAlone(error.delay_s, error.attempts)

    async def aembed_or_alone(self) -> Any:
        """Do as ``embed_or_alone`` without blocking the loop."""
        try:
            return await self.aembed()
        except AskAloneError as error:
            return AskAlone(error.delay_s, error.attempts)

    def submit(self, *, on_loop: bool = False) -> EmbeddingPrefetch:
        """Have a local engine embed documents before they are asked for in parts; equal ones once.

        In a block of ``taking_from`` the result, other calls take vectors from it.

        Args:
            on_loop: whether the caller is a task.
        """
        work_items = self._works(list(dict.fromkeys(self._prepared())))
        leaves = self.identity.accelerator.leaves
        handed = leaves.submit(self.identity, work_items, together=on_loop)
        pieces = [work.payload.texts for work in work_items]
        return EmbeddingPrefetch(self.identity, self.adopted, self.holder, pieces, handed, on_loop)

    @contextmanager
    def _handed(
        self, work_items: Sequence[Work], *, on_loop: bool = False
    ) -> Iterator[SubmittedWork]:
        """Submit work for a block; what the block does not wait for is cancelled."""
        leaves = self.identity.accelerator.leaves
        handed = leaves.submit(self.identity, work_items, together=on_loop)
        try:
            yield handed
        finally:
            handed.cancel()

    def _prepared(self) -> list[str]:
        return list(map(self.adopted.prepare, self.texts))

    def _ahead(self) -> EmbeddingPrefetch | None:
        if self.role != "document":
            return None
        return find_ahead(self.identity, self.adopted, self.holder)

    def _works(self, texts: list[str]) -> list[Work]:
        """Cut a long list into pieces of at most one batch, so that others' queries fit between."""
        accelerator, adopted, role = self.identity.accelerator, self.adopted, self.role
        hosted = adopted.hosted
        if hosted is not None:
            make = partial(adopted.make, accelerator.options)
            engine = accelerator.own(adopted.model, "hosted-embedding", make)
            shared = accelerator.hosted_texts
            gate = gate_for(self.identity, self.holder, is_cut=False)
            work = ServerTexts(
                tuple(texts),
                role,
                # A call has one turn at its endpoint: nobody's waits for that of a batch.
                group=(hosted.group, None if gate is None else gate.urgency()),
                ask=partial(_ask, hosted.asks(role), gate),
                attempts=1 if gate is None else max(1, hosted.attempts - 1),
                max_texts=hosted.max_texts,
                costs=shared.costs_of(hosted.group),
                note=partial(shared.note, hosted.group),
                caller=callers_span(),
            )
            # Not shared with equal work here: ``hosted_texts`` has one caller ask for all.
            return [Work(engine, PrimitiveKind.EMBEDDING, work, len(texts), obj=self.holder)]
        placed = on_devices(accelerator, adopted, self.holder)
        if placed is None:
            engine = usual_engine(accelerator, adopted, self.holder)
            placed, keep_most = PlacedModel(engine), 0
        else:  # a list longer than a batch is a load, which would push out what comes again
            keep_most = accelerator.options.max_batch
        step, keep = accelerator.options.max_batch, len(texts) <= keep_most
        batches = [
            placed.texts(tuple(texts[i : i + step]), role, keep) for i in range(0, len(texts), step)
        ]
        return [
            Work(
                placed.engine, PrimitiveKind.EMBEDDING, batch, len(batch.texts), batch, self.holder
            )
            for batch in batches
        ]


def _ask(ask: AskByGate, gate: EndpointGate | None, texts: list[str]) -> ServerAnswer:
    return ask(texts, gate)


def _joined(parts: Iterable[Any]) -> Vectors:
    return [vector for part in parts for vector in part.tolist()]


def _with_bar(count: int) -> Iterable[int]:
    """Return numbers from 0 on, with a bar as ``encode`` of sentence-transformers draws it."""
    tqdm: Any = importlib.import_module("tqdm.autonotebook").tqdm
    return cast("Iterable[int]", tqdm(range(count), desc="Batches"))
