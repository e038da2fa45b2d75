"""Document indexes in files: saved atomically into one, and loaded again.

One file, not a directory: a rename replaces a file in one step, so that a reader finds either the
old index or the new one, and the index cannot come apart. Documents are JSON lines, vectors raw
float32; FAISS's own serialisation is not used, because reading it trusts its bytes.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.index.file_format import (
    FORMAT_VERSION,
    LISTS_VERSION,
    damaged,
    read_footer,
    read_parts,
    write_parts,
)
from rag_accel.engines.retrieval.index.list_files import LISTS, list_parts, map_lists
from rag_accel.engines.retrieval.index.store import (
    DocumentIndex,
    IndexSnapshot,
    ListsSnapshot,
    TrainedClusters,
)
from rag_accel.engines.retrieval.vectors.checks import checked_vectors
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Metric, Vectors
from rag_accel.errors import ConfigError, DocumentError, EngineOutputError, IndexFileError
from rag_accel.system.files import replaced_file

BLOCK_ROWS = 4096
#: stands for what a file says
AS_SAVED = "as saved"

_LATER_FIELDS = ("stop", "hot", "hot_bytes")
_UNREADABLE = (KeyError, TypeError, ValueError, RecursionError, EngineOutputError)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """A stored index without its contents.

    Args:
        spec: dimension, metric and kind.
        count: number of documents.
        num_clusters: trained clusters; 0 where searches are flat.
        fingerprint: the name of the embedder, as given to ``save_index``.
    """

    spec: IndexSpec
    count: int
    num_clusters: int
    fingerprint: str


def save_index(index: DocumentIndex, path: str | os.PathLike[str], fingerprint: str) -> None:
    """Write the index to ``path``, replacing what is there in one step, with mode 0600.

    The file is written next to the target, flushed to disk and renamed; until then the old file is
    untouched, and of several savers the last one wins. A link is followed, not replaced. A
    process killed meanwhile leaves a hidden ``.NAME.*.tmp`` next to the target, which the next save
    removes.

    Args:
        index: what to save, as it is now; changes made while it is written are not in the file.
        path: the file to write.
        fingerprint: names the embedder of the vectors; ``load_index`` can insist on it.

    Raises:
        ConfigError: the fingerprint is not text.
        DocumentError: metadata that JSON does not give back equal; names document and key.
        IndexFileError: the index has its clusters in the file at ``path``, and another process has
            put another one there.
        OSError: the file cannot be written.
    """
    if not isinstance(fingerprint, str):
        raise ConfigError(
            "bad fingerprint", where="fingerprint", found=repr(fingerprint), valid="text"
        )
    target = Path(path).resolve()
    _require_own(index, target)
    if index.spec.hot != "ram" or not index.is_trained:
        snapshot = index.snapshot()
        num_clusters = len(snapshot.clusters.centroids) if snapshot.clusters else 0
        parts, version = _parts(snapshot), FORMAT_VERSION
    else:
        snapshot = index.lists_snapshot()
        num_clusters, parts, version = len(snapshot.lists), _list_parts(snapshot), LISTS_VERSION
    fields = _fields(index.spec, len(snapshot.documents), num_clusters, fingerprint)
    if isinstance(snapshot, ListsSnapshot):
        fields["max_norm"] = snapshot.max_norm
    with replaced_file(target) as file:
        write_parts(file, parts, fields, version)
        file.flush()
        written = _identity(os.fstat(file.fileno()))
    if index.origin is not None and index.origin[0] == target:
        index.origin = target, written


def load_index(
    path: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    dimension: int | None = None,
    metric: Metric | None = None,
    hot: str | None = AS_SAVED,
    hot_bytes: int | None = None,
) -> DocumentIndex:
    """Read an index written by ``save_index``; it answers as the saved one did.

    With ``hot="ram"`` its clusters stay in the file, which may be replaced but not be written to as
    long as the index is used. A file that was saved without is written again for that, once.

    Args:
        path: the file to read.
        fingerprint: refuse an index whose vectors another embedder made.
        dimension: refuse an index of another dimension.
        metric: refuse an index that compares otherwise.
        hot: as ``IndexSpec.hot``; by default as it was saved.
        hot_bytes: as ``IndexSpec.hot_bytes``; by default as it was saved.

    Raises:
        IndexFileError: the file is damaged, foreign, of another version or not the expected one;
            or it was saved without ``hot``, and cannot be written again.
        ConfigError: the calibration of its early stops is of other clusters, or unreadable; or
            ``hot`` or ``hot_bytes`` do not fit the index.
        OSError: the file cannot be read.
    """
    source = Path(path)
    with source.open("rb") as file:
        footer = read_footer(file, source)
        header = _header(footer, source)
        _check_expected(header, source, fingerprint, dimension, metric)
        spec = header.spec if hot == AS_SAVED else replace(header.spec, hot=hot)
        spec = spec if hot_bytes is None else replace(spec, hot_bytes=hot_bytes)
        if footer["format_version"] == LISTS_VERSION:
            return _over_lists(file, source, footer, replace(header, spec=spec))
        index = DocumentIndex.from_snapshot(
            _snapshot(replace(header, spec=spec), read_parts(file, source, footer), source)
        )
        read = _identity(os.fstat(file.fileno()))
    index.require_hot_room()
    if spec.hot != "ram" or not index.is_trained:
        return index
    if _identity(source.stat()) == read:  # else another process has written it meanwhile
        _write_lists(index, source, header.fingerprint)
    return load_index(
        path,
        fingerprint=fingerprint,
        dimension=dimension,
        metric=metric,
        hot=hot,
        hot_bytes=hot_bytes,
    )


def _write_lists(index: DocumentIndex, path: Path, fingerprint: str) -> None:
    try:
        save_index(index, path, fingerprint)
    except OSError as error:
        raise IndexFileError(
            "a stored index without lists that can be read where they lie",
            where=str(path),
            found=f"a file of version {FORMAT_VERSION}, which cannot be written again: {error}",
            valid=f"version {LISTS_VERSION}, as an index with hot='ram' is saved",
            hint="copy it to where it can be written, load it there once, or give hot=None",
        ) from error


def _over_lists(
    file: io.BufferedReader, path: Path, footer: Mapping[str, Any], header: IndexHeader
) -> DocumentIndex:
    """Return the index of a file whose lists are read where they lie; or in memory."""
    spec, count = header.spec, header.count
    parts = read_parts(file, path, footer, but={LISTS})
    try:
        documents, clusters = _documents(parts), _assignments(parts)
        centroids = _vectors(parts["centroids"], header.num_clusters, spec.dimension, "centroid")
        calibration = json.loads(parts.get("calibration", b"null"))
        stored = map_lists(file, path, footer, parts, clusters, spec.dimension)
        max_norm = float(footer["max_norm"])
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    _check_contents(header, documents, clusters, path)
    sizes = np.bincount(clusters, minlength=header.num_clusters)
    if not np.array_equal(sizes, [len(one) for one in stored.lists]):
        raise damaged(path, "lists of other sizes than assignments", "as its footer says")
    if spec.hot != "ram":
        vectors = np.empty((count, spec.dimension), dtype=np.float32)
        for cluster, one in enumerate(stored.lists):
            stored.check(cluster)
            vectors[one.labels] = one.vectors
        trained = TrainedClusters(centroids, clusters)
        index = DocumentIndex.from_snapshot(
            IndexSnapshot(spec, documents, vectors, trained, calibration)
        )
        index.require_hot_room()
        return index
    labels = np.arange(count, dtype=np.int64)
    snapshot = ListsSnapshot(
        spec, documents, labels, centroids, stored.lists, max_norm, calibration
    )
    index = DocumentIndex.over_lists(snapshot, clusters, stored.check, stored.reading_ahead())
    index.require_hot_room()
    index.origin = path.resolve(), _identity(os.fstat(file.fileno()))
    return index


def _identity(stat: os.stat_result) -> tuple[int, int]:
    """Return what tells a file from others at its path; an inode alone is used again."""
    return stat.st_ino, stat.st_mtime_ns


def _require_own(index: DocumentIndex, target: Path) -> None:
    """Raise IndexFileError if another file lies where an index has its clusters."""
    if index.origin is None or index.origin[0] != target or not target.exists():
        return
    if _identity(target.stat()) != index.origin[1]:
        raise IndexFileError(
            "a stored index that was written again since it was loaded",
            where=str(target),
            found="another file, whose edits would be lost",
            valid="the file that was loaded, or another path",
            hint="load it and make your edits again, or save the index under another name",
        )


def read_header(path: str | os.PathLike[str]) -> IndexHeader:
    """Describe a stored index without reading its contents; raises like ``load_index``."""
    source = Path(path)
    with source.open("rb") as file:
        return _header(read_footer(file, source), source)


def _fields(spec: IndexSpec, count: int, num_clusters: int, fingerprint: str) -> dict[str, Any]:
    fields = asdict(spec)
    return {
        # Apart: an older reader refuses an unknown field of the spec.
        **{name: fields.pop(name) for name in _LATER_FIELDS},
        "spec": fields,
        "count": count,
        "num_clusters": num_clusters,
        "fingerprint": fingerprint,
    }


def _list_parts(snapshot: ListsSnapshot) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield from list_parts(snapshot)
    yield "documents", map(_document_line, snapshot.documents)
    yield "centroids", _blocks(snapshot.centroids, "<f4")
    if snapshot.calibration is not None:
        yield "calibration", iter([json.dumps(snapshot.calibration).encode("ascii")])


def _parts(snapshot: IndexSnapshot) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield "documents", map(_document_line, snapshot.documents)
    yield "vectors", _blocks(snapshot.vectors, "<f4")
    if snapshot.clusters is not None:
        yield "centroids", _blocks(snapshot.clusters.centroids, "<f4")
        yield "assignments", _blocks(snapshot.clusters.assignments, "<i8")
        if snapshot.clusters.ranges is not None:
            yield "ranges", _blocks(snapshot.clusters.ranges, "<f4")
    if snapshot.calibration is not None:
        yield "calibration", iter([json.dumps(snapshot.calibration).encode("ascii")])


def _blocks(array: npt.NDArray[Any], dtype: str) -> Iterator[bytes]:
    for start in range(0, len(array), BLOCK_ROWS):
        yield array[start : start + BLOCK_ROWS].astype(dtype).tobytes()


def _document_line(document: Document) -> bytes:
    metadata = dict(document.metadata)
    if not _survives_json(metadata):
        raise _not_json(document)
    fields = {"id": document.id, "text": document.text, "metadata": metadata}
    return json.dumps(fields).encode("ascii") + b"\n"


def _survives_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _not_json(document: Document) -> DocumentError:
    key, value = next(
        (key, value) for key, value in document.metadata.items() if not _survives_json({key: value})
    )
    return DocumentError(
        "metadata that cannot be saved",
        where=f"document {document.id!r}, key {key!r}",
        found=f"{type(value).__name__} under a {type(key).__name__} key",
        valid="text keys; text, finite numbers, booleans, None, lists and dicts of these",
        hint="convert it before adding the document (a tuple to a list, a date to text)",
    )


def _header(footer: Mapping[str, Any], path: Path) -> IndexHeader:
    try:
        later = {name: footer[name] for name in _LATER_FIELDS if name in footer}
        spec = IndexSpec(**footer["spec"], **later)
        header = IndexHeader(spec, footer["count"], footer["num_clusters"], footer["fingerprint"])
    except (KeyError, TypeError, ConfigError) as error:
        raise damaged(
            path, f"an unreadable footer ({error})", "the fields of IndexHeader"
        ) from error
    counts = (header.count, header.num_clusters)
    if any(type(n) is not int or n < 0 for n in counts) or not isinstance(header.fingerprint, str):
        raise damaged(path, f"an unreadable footer ({header})", "the fields of IndexHeader")
    return header


def _check_expected(
    header: IndexHeader,
    path: Path,
    fingerprint: str | None,
    dimension: int | None,
    metric: Metric | None,
) -> None:
    """Raise IndexFileError where a stored index is not the expected one."""
    spec, embedder = header.spec, f"embedder {header.fingerprint!r}"
    source = "use the embedder the index was made with"
    if dimension is not None and spec.dimension != dimension:
        found = f"dimension {spec.dimension}, {embedder}"
        raise _unexpected("dimension", path, found, f"dimension {dimension}", source)
    if fingerprint is not None and header.fingerprint != fingerprint:
        raise _unexpected("embedder", path, embedder, f"embedder {fingerprint!r}", source)
    if metric is not None and spec.metric is not metric:
        source = "ask for the metric the index was made with"
        raise _unexpected("metric", path, f"metric {spec.metric}", f"metric {metric}", source)


def _unexpected(what: str, path: Path, found: str, valid: str, source: str) -> IndexFileError:
    return IndexFileError(
        f"a stored index of another {what}",
        where=str(path),
        found=found,
        valid=valid,
        hint=f"{source}, or build the index again",
    )


def _snapshot(header: IndexHeader, parts: Mapping[str, bytearray], path: Path) -> IndexSnapshot:
    spec, count = header.spec, header.count
    try:
        documents = _documents(parts)
        vectors = _vectors(parts["vectors"], count, spec.dimension, "vector of document")
        clusters, calibration = None, json.loads(parts.get("calibration", b"null"))
        if header.num_clusters:
            clusters = TrainedClusters(
                _vectors(parts["centroids"], header.num_clusters, spec.dimension, "centroid"),
                _assignments(parts),
                _ranges(parts["ranges"], spec.dimension) if spec.codes else None,
            )
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    assignments = None if clusters is None else clusters.assignments
    _check_contents(header, documents, assignments, path)
    return IndexSnapshot(spec, documents, vectors, clusters, calibration)


def _unreadable(path: Path, error: Exception) -> IndexFileError:
    return damaged(path, f"unreadable contents ({error})", "contents as its footer says")


def _documents(parts: Mapping[str, bytearray]) -> tuple[Document, ...]:
    return tuple(map(_document, parts["documents"].splitlines()))


def _assignments(parts: Mapping[str, bytearray]) -> Labels:
    return np.frombuffer(parts["assignments"], dtype="<i8").astype(np.int64)


def _document(line: bytes | bytearray) -> Document:
    fields = json.loads(line)
    document = Document(fields["id"], fields["text"], fields["metadata"])
    kinds = (document.id, str), (document.text, str), (document.metadata, dict)
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise ValueError(f"a document line without id, text and metadata: {line[:80]!r}")
    return document


def _vectors(data: bytearray, count: int, dimension: int, what: str) -> Vectors:
    values = np.frombuffer(data, dtype="<f4").reshape(-1, dimension)
    return checked_vectors(values, dimension, lambda row: f"{what} {row}", count)


def _ranges(data: bytearray, dimension: int) -> Vectors:
    # Their rows are no vectors: they may be longer than any vector taken.
    ranges = np.frombuffer(data, dtype="<f4").reshape(2, dimension).astype(np.float32)
    if not np.isfinite(ranges).all():
        raise ValueError("ranges of codes that are not finite")
    return ranges


def _check_contents(
    header: IndexHeader,
    documents: tuple[Document, ...],
    assignments: Labels | None,
    path: Path,
) -> None:
    ids = {document.id for document in documents}
    if len(documents) != header.count or len(ids) != header.count:
        raise damaged(
            path,
            f"{len(documents)} documents with {len(ids)} different ids",
            f"{header.count} documents, each with an id of its own",
        )
    if assignments is None:
        return
    end = header.num_clusters
    if assignments.shape != (header.count,) or not np.all((assignments >= 0) & (assignments < end)):
        raise damaged(
            path, "assignments to clusters that do not exist", f"{header.count} from 0 to {end - 1}"
        )
