"""Texts of recognised embeddings objects on an owned engine, batched across requests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.accelerator.placed_models import PlacedModel
from rag_accel.adoption.embedding_devices import on_devices
from rag_accel.adoption.embedding_prefetch import EmbeddingPrefetch, find_ahead
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.embedding.hosted_engine import AskAloneError, ServerTexts
from rag_accel.recognition.embeddings import AdoptedEmbeddings

Role = Literal["query", "document"]
Vectors = list[list[float]]


@dataclass(frozen=True, slots=True)
class AskAlone:
    """The answer to a caller that shall call its server by itself, after a wait."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """One call of a recognised object.

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
    one: bool

    def embed(self) -> Any:
        """Compute on the engine."""
        vectors = embed(self.identity, self.adopted, self.holder, self._prepared(), self.role)
        return vectors[0] if self.one else vectors

    async def aembed(self) -> Any:
        """Compute on the engine without blocking the loop."""
        texts = self._prepared()
        vectors = await aembed(self.identity, self.adopted, self.holder, texts, self.role)
        return vectors[0] if self.one else vectors

    def embed_or_alone(self) -> Any:
        """Compute on the engine; an ``AskAlone`` where the call that was shared has failed."""
        try:
            return self.embed()
        except AskAloneError as error:
            return AskAlone(error.delay_s)

    async def aembed_or_alone(self) -> Any:
        """Do as ``embed_or_alone`` without blocking the loop."""
        try:
            return await self.aembed()
        except AskAloneError as error:
            return AskAlone(error.delay_s)

    def _prepared(self) -> list[str]:
        return list(map(self.adopted.prepare, self.texts))


def embed(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    role: Role,
) -> Vectors:
    """Return one vector per text, in order, from an owned engine that lives as long as holders."""
    ahead = find_ahead(identity, adopted, holder) if role == "document" else None
    taken = None if ahead is None else ahead.take(texts)
    if taken is not None:
        return taken
    leaves = identity.accelerator.leaves
    parts = leaves.compute_all(identity, _works(identity, adopted, holder, texts, role))
    return [vector for part in parts for vector in part.tolist()]


async def aembed(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    role: Role,
) -> Vectors:
    """Do as ``embed`` without blocking the loop."""
    ahead = find_ahead(identity, adopted, holder) if role == "document" else None
    taken = None if ahead is None else await ahead.atake(texts)
    if taken is not None:
        return taken
    leaves = identity.accelerator.leaves
    work_items = _works(identity, adopted, holder, texts, role)
    if len(work_items) == 1:  # no task for the usual case
        parts = [await leaves.acompute(identity, work_items[0])]
    else:
        parts = await asyncio.gather(*(leaves.acompute(identity, work) for work in work_items))
    return [vector for part in parts for vector in part.tolist()]


def submit(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    *,
    on_loop: bool = False,
) -> EmbeddingPrefetch:
    """Have a local engine embed documents before they are asked for in parts.

    While the result is the context's ``current_prefetch``, ``embed`` and ``aembed`` take vectors
    from it; whoever set it closes it.

    Args:
        identity: the run they belong to.
        adopted: how an engine runs the object, which is no hosted one.
        holder: the object.
        texts: what to embed, prepared; equal ones once.
        on_loop: whether the caller is a task.
    """
    work_items = _works(identity, adopted, holder, list(dict.fromkeys(texts)), "document")
    handed = identity.accelerator.leaves.submit(identity, work_items, together=on_loop)
    pieces = [work.payload.texts for work in work_items]
    return EmbeddingPrefetch(identity, adopted, holder, pieces, handed)


def _works(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    role: Role,
) -> list[Work]:
    """Cut a long list into pieces of at most one batch, so that others' queries fit between."""
    accelerator, hosted = identity.accelerator, adopted.hosted
    make = functools.partial(adopted.make, accelerator.options)
    if hosted is not None:
        engine = accelerator.own(adopted.model, "hosted-embedding", make)
        work = ServerTexts(
            tuple(texts),
            role,
            group=hosted.group,
            ask=hosted.asks(role),
            max_texts=hosted.max_texts,
        )
        # Not shared with equal work: a caller never waits for the end of another's call.
        return [Work(engine, PrimitiveKind.EMBEDDING, work, len(texts))]
    placed = on_devices(accelerator, adopted, holder)
    if placed is None:
        engine = accelerator.own(adopted.model, "embedding", make, adopted.variant, holder)
        placed, keep_most = PlacedModel(engine), 0
    else:  # a list longer than a batch is a load, which would push out what comes again
        keep_most = accelerator.options.max_batch
    step, keep = accelerator.options.max_batch, len(texts) <= keep_most
    batches = [
        placed.texts(tuple(texts[i : i + step]), role, keep) for i in range(0, len(texts), step)
    ]
    return [
        Work(placed.engine, PrimitiveKind.EMBEDDING, batch, len(batch.texts), batch)
        for batch in batches
    ]
