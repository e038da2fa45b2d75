"""A folder of shards: an index and an order for each, and a manifest that names the version.

Files are written once, under a name of their version and of the one change that writes them; only
the manifest is ever replaced, in one step, and under a lock only by a change that was made from it.
So a process that starts at any time finds either all of a version or all of the one before, and of
the changes that several programs make of one version at once, one is taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, load_index, save_index
from rag_accel.errors import ConfigError, IndexFileError, ShardsChangedError
from rag_accel.system.files import held_lock, replaced_file

Orders = npt.NDArray[np.int64]

_NAME = "manifest.json"
_LOCK = "manifest.lock"
_FORMAT = 1
#: Most seconds in which another program replaces the manifest.
_LOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard, by their names in the folder.

    Args:
        index: as ``save_index`` writes it.
        orders: the place of each document in the order of all: ``[count], int64``.
        count: documents.
    """

    index: str
    orders: str
    count: int


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """A version of all shards.

    Args:
        version: grows with each ingestion.
        dimension: of the vectors.
        metric: by its name.
        fingerprint: names the embedder, see ``save_index``.
        next_order: the place of the next new document in the order of all.
        shards: their files.
    """

    version: int
    dimension: int
    metric: str
    fingerprint: str
    next_order: int
    shards: tuple[ShardFiles, ...]

    @property
    def spec(self) -> IndexSpec:
        """Return the settings of each shard's index."""
        return IndexSpec(self.dimension, self.metric)  # type: ignore[arg-type]  # by name


def write_shards(
    folder: str | os.PathLike[str], parts: Sequence[DocumentIndex], fingerprint: str
) -> None:
    """Write the indexes as the shards of a folder, which may be new or hold no shards.

    The order of all documents, which settles equal scores, is that of the parts one behind another.

    Args:
        folder: that every node of the cluster sees under this name.
        parts: flat indexes of one dimension and metric, one for each shard.
        fingerprint: names the embedder of the vectors.

    Raises:
        ConfigError: no parts, parts that do not fit together, or shards that are there already.
        DocumentError: metadata that JSON does not give back equal.
        OSError: a file cannot be written.
    """
    path = Path(folder)
    specs = _checked_parts(parts)
    if (path / _NAME).exists():
        raise _filled(path)
    path.mkdir(parents=True, exist_ok=True)
    first, shards = 0, list[ShardFiles]()
    seen: set[str] = set()
    for place, part in enumerate(parts):
        ids = [document.id for document in part.snapshot().documents]
        twice = seen.intersection(ids)
        if twice:
            raise ConfigError(
                "a document in two shards", where=f"parts[{place}]", found=repr(min(twice))
            )
        seen.update(ids)
        orders = np.arange(first, first + len(ids), dtype=np.int64)
        shards.append(write_shard(path, place, 1, part, orders, fingerprint))
        first += len(ids)
    spec = specs[0]
    manifest = ShardManifest(
        1, spec.dimension, str(spec.metric.value), fingerprint, first, tuple(shards)
    )
    try:
        commit_manifest(path, None, manifest)
    except ShardsChangedError as error:
        for files in shards:
            remove_shard(path, files)
        raise _filled(path) from error


def split_index(index: DocumentIndex, shards: int) -> list[DocumentIndex]:
    """Return flat indexes that together hold the documents of one, in its order.

    Args:
        index: of any kind.
        shards: how many; sizes differ by one document at most.

    Raises:
        ConfigError: fewer than one shard.
    """
    if isinstance(shards, bool) or shards < 1:
        raise ConfigError("bad number of shards", where="shards", found=shards, valid="from 1")
    whole = index.snapshot()
    parts: list[DocumentIndex] = []
    for rows in np.array_split(np.arange(len(whole.documents)), shards):
        part = DocumentIndex(IndexSpec(whole.spec.dimension, whole.spec.metric))
        part.add([whole.documents[row] for row in rows], whole.vectors[rows])
        parts.append(part)
    return parts


def write_shard(
    folder: Path, place: int, version: int, index: DocumentIndex, orders: Orders, fingerprint: str
) -> ShardFiles:
    """Write the files of a shard under names of a version that no other change has."""
    name = f"shard-{place}.{version}-{secrets.token_hex(8)}"
    files = ShardFiles(f"{name}.index", f"{name}.orders.npy", len(orders))
    try:
        save_index(index, folder / files.index, fingerprint)
        with replaced_file((folder / files.orders).resolve()) as file:
            np.save(file, orders, allow_pickle=False)
    except BaseException:
        remove_shard(folder, files)
        raise
    return files


def read_shard(
    folder: Path, manifest: ShardManifest, place: int
) -> tuple[DocumentIndex, dict[str, int]]:
    """Return the index of a shard, and the place of each id in the order of all.

    Raises:
        IndexFileError: a file is damaged, or of another version or embedder than the manifest.
        OSError: a file cannot be read.
    """
    files, spec = manifest.shards[place], manifest.spec
    index = load_index(
        folder / files.index,
        fingerprint=manifest.fingerprint,
        dimension=spec.dimension,
        metric=spec.metric,
    )
    source = folder / files.orders
    try:
        orders = np.load(source, allow_pickle=False)
    except ValueError as error:
        raise _damaged(source, str(error)) from error
    ids = [document.id for document in index.snapshot().documents]
    if orders.shape != (len(ids),) or orders.dtype != np.int64:
        raise _damaged(source, f"{orders.dtype} of shape {orders.shape} for {len(ids)} documents")
    return index, dict(zip(ids, orders.tolist(), strict=True))


def read_manifest(folder: Path) -> ShardManifest:
    """Return the version that the folder holds.

    Raises:
        IndexFileError: it is damaged, or of a newer format.
        ConfigError: there is none.
        OSError: it cannot be read.
    """
    source = folder / _NAME
    try:
        fields: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            "a folder without shards",
            where=str(folder),
            found=f"no {_NAME}",
            valid="a folder that write_shards has filled, seen under one name by every node",
        ) from error
    except ValueError as error:
        raise _damaged(source, str(error)) from error
    try:
        if fields.pop("format") != _FORMAT:
            raise _damaged(source, "another format")
        shards = tuple(ShardFiles(**shard) for shard in fields.pop("shards"))
        manifest = ShardManifest(**fields, shards=shards)
        manifest.spec  # noqa: B018  # refuses a wrong dimension or metric
    except (AttributeError, KeyError, TypeError, ConfigError) as error:
        raise _damaged(source, f"{type(error).__name__}: {error}") from error
    return manifest


def commit_manifest(folder: Path, before: ShardManifest | None, after: ShardManifest) -> None:
    """Replace one manifest by another in one step: from now on its version is the one that counts.

    Args:
        folder: with the manifest.
        before: from which the change was made; None for a folder without one.
        after: the next version.

    Raises:
        ShardsChangedError: another program has replaced it, or keeps the lock.
        OSError: the folder cannot be written, or its file system has no locks.
    """
    try:
        with held_lock(folder / _LOCK, _LOCK_S):
            present = read_manifest(folder) if (folder / _NAME).exists() else None
            if present != before:
                raise changed_error(folder, present)
            _write_manifest(folder, after)
    except TimeoutError as error:
        raise changed_error(folder, error) from error


def _write_manifest(folder: Path, manifest: ShardManifest) -> None:
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1)
    try:
        with replaced_file((folder / _NAME).resolve()) as file:
            file.write(text.encode())
    except OSError:
        if read_manifest(folder) != manifest:  # else it counts, and only a flush has failed
            raise


def changed_error(folder: Path, found: ShardManifest | object) -> ShardsChangedError:
    """Return the error of a change that another program's has come before."""
    if isinstance(found, ShardManifest):
        found = f"version {found.version} of another program"
    return ShardsChangedError(
        "the shards were changed by another program meanwhile",
        where=str(folder),
        found=found,
        valid="the version from which the change was made",
        hint="nothing of this change was taken; send it again, and it is made from that version",
    )


def remove_shard(folder: Path, files: ShardFiles) -> None:
    """Remove the files of a shard, as far as they are there."""
    for name in (files.index, files.orders):
        (folder / name).unlink(missing_ok=True)


def remove_old_files(folder: Path, manifest: ShardManifest, place: int) -> None:
    """Remove the files of a shard that no manifest names any more, nor ever will.

    Those of a version after the manifest's may be of a change of another program that is under way.
    """
    kept = {manifest.shards[place].index, manifest.shards[place].orders}
    versioned = re.compile(rf"\.?shard-{place}\.(\d+)[-.]")  # with a dot: of a writer that died
    for name in os.listdir(folder):
        found = versioned.match(name)
        if found and int(found[1]) <= manifest.version and name not in kept:
            with contextlib.suppress(
                OSError
            ):  # a reader may lack the right: the next change has it
                (folder / name).unlink()


def next_manifest(
    manifest: ShardManifest, changed: dict[int, ShardFiles], new_documents: int
) -> ShardManifest:
    shards = tuple(changed.get(place, files) for place, files in enumerate(manifest.shards))
    return replace(
        manifest,
        version=manifest.version + 1,
        next_order=manifest.next_order + new_documents,
        shards=shards,
    )


def _checked_parts(parts: Sequence[DocumentIndex]) -> list[IndexSpec]:
    specs = [part.spec for part in parts]
    if not specs:
        raise ConfigError("no shards", where="parts", found=0, valid="from 1 index")
    for place, spec in enumerate(specs):
        if spec.kind is not IndexKind.FLAT:
            raise ConfigError(
                "a shard with clusters is not searched exactly",
                where=f"parts[{place}]",
                found=spec.kind.value,
                valid=IndexKind.FLAT.value,
                hint="split_index makes flat shards of any index",
            )
        if (spec.dimension, spec.metric) != (specs[0].dimension, specs[0].metric):
            raise ConfigError(
                "shards that do not fit together",
                where=f"parts[{place}]",
                found=f"{spec.dimension} dimensions, {spec.metric.value}",
                valid=f"{specs[0].dimension} dimensions, {specs[0].metric.value}",
            )
    return specs


def _filled(folder: Path) -> ConfigError:
    return ConfigError(
        "the folder holds shards already", where=str(folder), valid="a folder without any"
    )


def _damaged(source: Path, found: str) -> IndexFileError:
    return IndexFileError("stored shards cannot be used", where=str(source), found=found)
