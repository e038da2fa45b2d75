"""Texts of recognised embeddings objects on an owned engine, batched across requests."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.accelerator.program_embedders import PlacedModel
from rag_accel.adoption.embedding_devices import on_devices, usual_engine
from rag_accel.adoption.embedding_prefetch import EmbeddingPrefetch, find_ahead
from rag_accel.adoption.endpoint_gates import gate_for
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.embedding.hosted_engine import AskAloneError, ServerAnswer, ServerTexts
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.leaves.submitted_work import SubmittedWork
from rag_accel.recognition.embeddings import AdoptedEmbeddings, AskByGate
from rag_accel.telemetry.shared_spans import callers_span

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
                    vectors = _rows(handed.value(at) for at in _with_bar(len(work_items)))
            else:
                vectors = _rows(leaves.compute_all(self.identity, work_items))
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
            vectors = _rows(parts)
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
            return [Work(engine, PrimitiveKind.EMBEDDING, work, len(texts))]
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
            Work(placed.engine, PrimitiveKind.EMBEDDING, batch, len(batch.texts), batch)
            for batch in batches
        ]


def _ask(ask: AskByGate, gate: EndpointGate | None, texts: list[str]) -> ServerAnswer:
    return ask(texts, gate)


def _rows(parts: Iterable[Any]) -> Vectors:
    return [vector for part in parts for vector in part.tolist()]


def _with_bar(count: int) -> Iterable[int]:
    """Return numbers from 0 on, with a bar as ``encode`` of sentence-transformers draws it."""
    tqdm: Any = importlib.import_module("tqdm.autonotebook").tqdm
    return cast("Iterable[int]", tqdm(range(count), desc="Batches"))
