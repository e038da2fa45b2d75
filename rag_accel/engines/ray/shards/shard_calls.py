"""The payloads and results of a shard's actor.

A version names one state of all shards together. An ingestion makes the next one: each shard that
gets documents prepares it, the folder's manifest names it, which decides, and each shard takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import Document, ScoredDocument, SearchQuery


@dataclass(frozen=True, slots=True)
class ShardSearch:
    """A search in one version of a shard. The final value: ``ShardHits``, or ``OtherVersion``."""

    version: int
    query: SearchQuery


@dataclass(frozen=True, slots=True)
class ShardHits:
    """The nearest documents of a shard, best first, with their places in the order of all."""

    documents: tuple[ScoredDocument, ...]
    orders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The answer of a shard that lacks a version; ``newest`` is the last one it has."""

    newest: int


@dataclass(frozen=True, slots=True)
class ShardLookup:
    """A question which documents a shard has. The final value: their ids, ``frozenset[str]``.

    A shard of another version than ``version`` reads it first, where it is the manifest's.
    """

    version: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardChange:
    """Documents for the next version of a shard. The final value: its ``ShardFiles``, on disk.

    Args:
        version: that is prepared; another one that was prepared before is dropped.
        documents: each replaces the one of its id, if there is one.
        vectors: ``[len(documents), dim], float32``.
        orders: the places of new documents in the order of all; -1 for one that is replaced.
    """

    version: int
    documents: tuple[Document, ...]
    vectors: Any
    orders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """A request to take the version that the manifest names. The final value: that version.

    Searches of the version before it go on to be answered until it takes another one. What
    was prepared and is not in it is removed.
    """

    version: int
