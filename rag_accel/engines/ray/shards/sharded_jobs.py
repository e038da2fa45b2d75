"""Searches and changes of shards while they are under way, and the merge of what shards found."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import EngineRequest, IngestBatch, ScoredDocument, SearchQuery
from rag_accel.engines.ray.jobs import HostedJob
from rag_accel.engines.ray.shards.shard_calls import ShardHits


@dataclass(slots=True, eq=False)
class ShardedJob:
    """A search or an ingestion while it is under way. Equal only to itself."""

    request: EngineRequest
    query: SearchQuery | None = None
    batch: IngestBatch | None = None
    version: int = 0
    tries: int = 0
    hits: dict[int, ShardHits] = field(default_factory=dict[int, ShardHits])
    parts: list[ShardPart] = field(default_factory=list["ShardPart"])
    task: Future[Any] | None = None


@dataclass(slots=True, eq=False)
class ShardPart(HostedJob):
    """The part of a search that one shard answers, or a call of an ingestion (``answer``)."""

    place: int = field(default=0, kw_only=True)
    whole: ShardedJob | None = field(default=None, kw_only=True)
    answer: Future[Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ChangeEnd:
    """The end of an ingestion, or of a look for the shards' version (without a job)."""

    job: ShardedJob | None
    error: Exception | None = None


def merge_hits(parts: Iterable[ShardHits], k: int) -> tuple[ScoredDocument, ...]:
    """Return the ``k`` best of several shards; equal scores by the order of all documents."""
    ranked = heapq.merge(
        *(
            [
                (-found.score, order, found)
                for found, order in zip(h.documents, h.orders, strict=True)
            ]
            for h in parts
        ),
        key=lambda hit: hit[:2],
    )
    return tuple(found for _, _, found in itertools.islice(ranked, max(0, k)))
