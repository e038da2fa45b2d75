"""An ingestion into shards: all take it, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.engine_api import Document
from rag_accel.engines.ray.shards.hosted_shard import ShardChange, ShardCommit, ShardLookup
from rag_accel.engines.ray.shards.shard_files import (
    ShardFiles,
    ShardManifest,
    changed_error,
    commit_manifest,
    next_manifest,
    read_manifest,
)
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.errors import EngineLostError

#: Sends a call to the shard of a place.
Ask = Callable[[int, Any], Future[Any]]


class ShardIngestion:
    """Changes of a folder of shards, one at a time.

    Args:
        folder: with the manifest.
        ask: sends calls to shards.
    """

    def __init__(self, folder: Path, ask: Ask) -> None:
        self._folder = folder
        self._ask = ask

    def ingest(self, documents: Sequence[Document], vectors: Vectors) -> int:
        """Put documents into the shards and return the version that has them.

        A document whose id is there replaces it in its place. New ones go to the smallest shards.
        Of equal ids the last document counts. The manifest decides: until it is replaced the
        change can fail, and leaves no trace; from then on a shard that was lost takes it as it
        starts again.

        Args:
            documents: valid.
            vectors: ``[len(documents), dim], float32``.

        Raises:
            EngineLostError: a shard was lost before the change was decided.
            ShardsChangedError: another program has changed the shards meanwhile.
            Exception: whatever a shard raises, such as DocumentError.
        """
        manifest = read_manifest(self._folder)
        last = {document.id: row for row, document in enumerate(documents)}
        if not last:
            return manifest.version
        try:
            homes = self._homes(manifest, list(last))
            changed, new = self._prepare(manifest, homes, last, documents, vectors)
            commit_manifest(self._folder, manifest, next_manifest(manifest, changed, new))
        except OSError as error:
            present = read_manifest(self._folder)
            if present == manifest:
                raise
            # Another program's shards remove what comes too late, also while it is written.
            raise changed_error(self._folder, present) from error
        with contextlib.suppress(Exception):  # it is decided: searches wait for a shard that fails
            self.refresh()
        return manifest.version + 1

    def refresh(self) -> int:
        """Have every shard take the version of the manifest, and return it.

        One that is lost meanwhile reads the manifest as it starts.
        """
        manifest = read_manifest(self._folder)
        places = range(len(manifest.shards))
        for answer in [self._ask(place, ShardCommit(manifest.version)) for place in places]:
            try:
                answer.result()
            except EngineLostError:
                continue
        return manifest.version

    def _homes(self, manifest: ShardManifest, ids: Sequence[str]) -> Mapping[str, int]:
        lookup = ShardLookup(manifest.version, tuple(ids))
        answers = [self._ask(place, lookup) for place in range(len(manifest.shards))]
        return {id: place for place, answer in enumerate(answers) for id in answer.result()}

    def _prepare(
        self,
        manifest: ShardManifest,
        homes: Mapping[str, int],
        last: Mapping[str, int],
        documents: Sequence[Document],
        vectors: Vectors,
    ) -> tuple[dict[int, ShardFiles], int]:
        """Return the files of the shards that change, and the number of new documents."""
        counts = [shard.count for shard in manifest.shards]
        rows: dict[int, list[int]] = {}
        orders: dict[int, list[int]] = {}
        new = 0
        for id, row in last.items():
            place = homes.get(id)
            order = -1
            if place is None:
                place = counts.index(min(counts))
                counts[place] += 1
                order = manifest.next_order + new
                new += 1
            rows.setdefault(place, []).append(row)
            orders.setdefault(place, []).append(order)
        answers = {
            place: self._ask(
                place,
                ShardChange(
                    manifest.version + 1,
                    tuple(documents[row] for row in chosen),
                    np.ascontiguousarray(vectors[chosen]),
                    tuple(orders[place]),
                ),
            )
            for place, chosen in rows.items()
        }
        wait(answers.values())  # also where one fails: none may come after the next change
        return {place: answer.result() for place, answer in answers.items()}, new
