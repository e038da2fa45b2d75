"""Texts of recognised embeddings objects on an owned engine, batched across requests."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines.embedding.hosted_engine import AskAloneError, ServerTexts, is_small
from rag_accel.interception.identity import aowned_or_plain, owned_or_plain
from rag_accel.interception.leaf_call import LeafCall, is_nested, meters, note_leaf
from rag_accel.interception.leaf_table import (
    LeafMethod,
    leaf_class,
    plain_class,
    plain_method,
)
from rag_accel.scheduler.messages import EngineName
from rag_accel_adapters.langchain.hosted import HostedCalls
from rag_accel_adapters.langchain.models import AdoptedEmbeddings, adopt_embeddings

Role = Literal["query", "document"]
Method = Callable[..., Any]
Vectors = list[list[float]]


@dataclass(frozen=True, slots=True)
class _Alone:
    """What a caller gets instead of vectors where it is to ask its server alone, after a wait."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a recognised object: the run it belongs to and what it is to embed."""

    identity: RequestIdentity
    adopted: AdoptedEmbeddings
    obj: Any
    texts: Any
    one: bool

    def embed(self) -> Any:
        """Compute on the engine."""
        vectors = embed(self.identity, self.adopted, self.obj, *self._work())
        return self._done(vectors)

    async def aembed(self) -> Any:
        """Compute on the engine without blocking the loop."""
        return self._done(await aembed(self.identity, self.adopted, self.obj, *self._work()))

    def embed_or_alone(self) -> Any:
        """Compute on the engine; an ``_Alone`` where the call that was shared has failed."""
        try:
            return self.embed()
        except AskAloneError as error:
            return _Alone(error.delay_s)

    async def aembed_or_alone(self) -> Any:
        """Do as ``embed_or_alone`` without blocking the loop."""
        try:
            return await self.aembed()
        except AskAloneError as error:
            return _Alone(error.delay_s)

    def _work(self) -> tuple[list[str], Role]:
        texts = [self.texts] if self.one else self.texts
        return list(map(self.adopted.prepare, texts)), "query" if self.one else "document"

    def _done(self, vectors: Vectors) -> Any:
        if meters:
            note_leaf(self.obj, (), "queued")
        return vectors[0] if self.one else vectors


def recognising(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
    """Return the scheduled version of an embedding method that uses an owned engine where it can.

    ``borrowed`` is the one for objects that are not recognised.
    """

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _recognise(identity, self, leaf, args, kwargs)
        if call is None:
            return borrowed(identity, self, *args, **kwargs)

        def unscheduled() -> Any:
            with LeafCall(identity, self, leaf, leaf_class(type(self)), ()).inside():
                return original(self, *args, **kwargs)

        accelerator = identity.accelerator
        if call.adopted.hosted is None:
            return owned_or_plain(accelerator, call.embed, unscheduled, "embedding")
        found = owned_or_plain(accelerator, call.embed_or_alone, unscheduled, "embedding")
        if not isinstance(found, _Alone):
            return found
        time.sleep(found.delay_s)
        return borrowed(identity, call.adopted.hosted.alone(), *args, **kwargs)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _recognise(identity, self, leaf, args, kwargs)
        if call is None:
            return await borrowed(identity, self, *args, **kwargs)

        async def unscheduled() -> Any:
            with LeafCall(identity, self, leaf, leaf_class(type(self)), ()).inside():
                return await original(self, *args, **kwargs)

        accelerator = identity.accelerator
        if call.adopted.hosted is None:
            return await aowned_or_plain(accelerator, call.aembed, unscheduled, "embedding")
        found = await aowned_or_plain(accelerator, call.aembed_or_alone, unscheduled, "embedding")
        if not isinstance(found, _Alone):
            return found
        await asyncio.sleep(found.delay_s)
        return await borrowed(identity, call.adopted.hosted.alone(), *args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


def embed(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    role: Role,
) -> Vectors:
    """Return one vector per text, in order, from an owned engine that lives as long as holders."""
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
    leaves = identity.accelerator.leaves
    works = _works(identity, adopted, holder, texts, role)
    if len(works) == 1:  # no task for the usual case
        parts = [await leaves.acompute(identity, works[0])]
    else:
        parts = await asyncio.gather(*(leaves.acompute(identity, work) for work in works))
    return [vector for part in parts for vector in part.tolist()]


def _works(
    identity: RequestIdentity,
    adopted: AdoptedEmbeddings,
    holder: Any,
    texts: Sequence[str],
    role: Role,
) -> list[Work]:
    """Cut a long list into pieces of at most one batch, so that others' queries fit between."""
    engine = _engine(identity, adopted, holder)
    hosted = adopted.hosted
    if hosted is not None:
        work = ServerTexts(
            tuple(texts), role, group=hosted.group, ask=hosted.ask, max_texts=hosted.max_texts
        )
        # Not shared with equal work: a caller never waits for the end of another's call.
        return [Work(engine, PrimitiveKind.EMBEDDING, work, len(texts))]
    step = identity.accelerator.options.max_batch
    pieces = [tuple(texts[i : i + step]) for i in range(0, len(texts), step)]
    return [
        Work(engine, PrimitiveKind.EMBEDDING, TextBatch(piece, role), len(piece), (role, piece))
        for piece in pieces
    ]


def _engine(identity: RequestIdentity, adopted: AdoptedEmbeddings, holder: Any) -> EngineName:
    accelerator = identity.accelerator
    make = functools.partial(adopted.make, accelerator.options)
    if adopted.hosted is not None:
        return accelerator.own(adopted.model, "hosted-embedding", make)
    return accelerator.own(adopted.model, "embedding", make, adopted.variant, holder)


def _recognise(
    identity: RequestIdentity,
    obj: Any,
    leaf: LeafMethod,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Call | None:
    """Return the call if an owned engine can do it; one with other arguments is not understood."""
    if not leaf_class(type(obj)).may_be_owned:
        return None
    given = (*args, *kwargs.values())
    if len(given) != 1 or is_nested(obj):
        return None
    adopted = adopt_embeddings(obj, plain_class(type(obj)), plain_method)
    one = leaf.name.endswith("_query")
    if adopted is None or (
        adopted.hosted is not None and not _may_share(adopted.hosted, given[0], one)
    ):
        return None
    return _Call(identity, adopted, obj, given[0], one)


def _may_share(hosted: HostedCalls, given: Any, one: bool) -> bool:
    """Tell whether what a caller asks a server for may go into a call with what others ask."""
    texts = [given] if one else given
    if type(texts) is not list or any(type(text) is not str for text in texts):
        return False
    return len(texts) <= hosted.max_texts and is_small(texts)
