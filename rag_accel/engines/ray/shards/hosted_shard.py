"""An ingestion into shards, which all take or none, and the engine of one shard in its actor.

A version names one state of all shards together. An ingestion makes the next one: each shard that
gets documents prepares it, the folder's manifest names it, which decides, and each shard takes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    ScoredDocument,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.ray.shards.shard_files import (
    ShardFiles,
    ShardManifest,
    changed_error,
    commit_manifest,
    next_manifest,
    read_manifest,
    read_shard,
    remove_old_files,
    remove_shard,
    write_shard,
)
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.errors import EngineLostError


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


@dataclass(frozen=True, slots=True, eq=False)
class _ShardState:
    """One version of the shard."""

    index: DocumentIndex
    orders: dict[str, int]
    engine: RetrievalEngine
    files: ShardFiles


class HostedShard(OwnEngine):
    """The engine of one shard, read from the folder that the manifest describes.

    SEARCHING takes a ``ShardSearch``, INGESTION a ``ShardLookup``, ``ShardChange`` or
    ``ShardCommit``; changes of a step come behind its searches, in the order they came.

    Args:
        folder: with the manifest.
        place: of the shard in it.

    Raises:
        ConfigError: there are no shards.
        IndexFileError: the files are damaged.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], place: int) -> None:
        self._folder = Path(folder)
        self._place = place
        self._manifest, state = self._read()
        super().__init__(
            replace(
                state.engine.profile,
                kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
                stepped=False,
                capabilities=frozenset(),
            ),
            f"shard {place} of {folder}",
        )
        self._states = {self._manifest.version: state}
        self._prepared: _ShardState | None = None
        self._pending: dict[WorkId, EngineRequest] = {}

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._pending.update((request.id, request) for request in work)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        for id in ids:
            self._pending.pop(id, None)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Answer all searches together, then the other calls."""
        taken, self._pending = list(self._pending.values()), {}
        searches = [r for r in taken if isinstance(r.payload, ShardSearch)]
        # Without a limit of time all searches end: a change may drop their version of the shard.
        outputs = self._search(searches, StepBudget(threads=budget.threads))
        for request in taken:
            if not isinstance(request.payload, ShardSearch):
                outputs.append(self._ended(request))
        return outputs

    def close(self) -> None:
        for state in self._states.values():
            state.engine.close()
        self._states.clear()
        self._prepared = None

    def _search(self, searches: Sequence[EngineRequest], budget: StepBudget) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        by_version: dict[int, list[EngineRequest]] = {}
        for request in searches:
            call: ShardSearch = request.payload
            if call.version in self._states:
                plain = replace(
                    request, payload=call.query, kind=PrimitiveKind.SEARCHING, provisional=False
                )
                by_version.setdefault(call.version, []).append(plain)
            else:
                other = OtherVersion(self._manifest.version)
                outputs.append(EngineOutput(request.id, "final", other))
        for version, requests in by_version.items():
            state = self._states[version]
            state.engine.submit(requests)
            outputs += [_with_orders(output, state) for output in state.engine.step(budget)]
        return outputs

    def _ended(self, request: EngineRequest) -> EngineOutput:
        call: Callable[[Any], object] | None = {
            ShardLookup: self._known,
            ShardChange: self._prepare,
            ShardCommit: self._commit,
        }.get(type(request.payload))
        try:
            if call is None:
                found = type(request.payload).__name__
                raise self._refusal("payload of a wrong type", found, "a call of a shard")
            return EngineOutput(request.id, "final", call(request.payload))
        except Exception as error:
            return EngineOutput(request.id, "error", error=error)

    def _known(self, call: ShardLookup) -> frozenset[str]:
        return frozenset(self._at(call.version).orders.keys() & set(call.ids))

    def _prepare(self, call: ShardChange) -> ShardFiles:
        old = self._at(call.version - 1)
        self._drop_prepared()  # of a change that failed elsewhere
        index = DocumentIndex.from_snapshot(old.index.snapshot())
        index.add(call.documents, call.vectors)
        orders = dict(old.orders)
        for document, order in zip(call.documents, call.orders, strict=True):
            orders.setdefault(document.id, order)
        placed = np.array([orders[d.id] for d in index.snapshot().documents], dtype=np.int64)
        fingerprint = self._manifest.fingerprint
        files = write_shard(self._folder, self._place, call.version, index, placed, fingerprint)
        self._prepared = _ShardState(index, orders, RetrievalEngine(index), files)
        return files

    def _commit(self, call: ShardCommit) -> int:
        """Take the version of the manifest: prepared, unchanged, or read again."""
        self._take_newest()
        return self._manifest.version

    def _at(self, version: int) -> _ShardState:
        if version != self._manifest.version:
            self._take_newest()
        if version != self._manifest.version:
            raise changed_error(self._folder, self._manifest)
        return self._newest

    def _take_newest(self) -> None:
        manifest, newest = read_manifest(self._folder), self._newest
        files = manifest.shards[self._place]
        if manifest != self._manifest:
            if self._prepared is not None and self._prepared.files == files:
                state, self._prepared = self._prepared, None
            elif newest.files == files:
                state = newest
            else:
                manifest, state = self._read()
            # Searches that began before go on in the version before, which goes with the next one.
            self._states = {self._manifest.version: newest, manifest.version: state}
            self._manifest = manifest
        self._drop_prepared()
        remove_old_files(self._folder, self._manifest, self._place)

    def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            remove_shard(self._folder, prepared.files)

    @property
    def _newest(self) -> _ShardState:
        return self._states[self._manifest.version]

    def _read(self) -> tuple[ShardManifest, _ShardState]:
        """Read the newest version; another program may remove the files of the one before."""
        while True:
            manifest = read_manifest(self._folder)
            try:
                index, orders = read_shard(self._folder, manifest, self._place)
            except OSError:
                if read_manifest(self._folder) == manifest:
                    raise
            else:
                files = manifest.shards[self._place]
                return manifest, _ShardState(index, orders, RetrievalEngine(index), files)


def _with_orders(output: EngineOutput, state: _ShardState) -> EngineOutput:
    if output.kind != "final":
        return output
    found = tuple(output.value)
    orders = tuple(state.orders[scored.document.id] for scored in found)
    return replace(output, value=ShardHits(found, orders))


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
