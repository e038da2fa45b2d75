"""Document indexes in files: saved atomically into one, and loaded again.

One file, not a directory: a rename replaces a file in one step, so that a reader finds either the
old index or the new one, and the index cannot come apart. Documents are JSON lines, vectors raw
float32; FAISS's own serialisation is not used, because reading it trusts its bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval.index.file_format import (
    damaged,
    read_footer,
    read_parts,
    write_parts,
)
from rag_accel.engines.retrieval.index.store import DocumentIndex, IndexSnapshot, TrainedClusters
from rag_accel.engines.retrieval.vectors.checks import checked_vectors
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Metric, Vectors
from rag_accel.errors import ConfigError, DocumentError, EngineOutputError, IndexFileError
from rag_accel.system.files import replaced_file

BLOCK_ROWS = 4096


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
        OSError: the file cannot be written.
    """
    if not isinstance(fingerprint, str):
        raise ConfigError(
            "bad fingerprint", where="fingerprint", found=repr(fingerprint), valid="text"
        )
    snapshot = index.snapshot()
    with replaced_file(Path(path).resolve()) as file:
        write_parts(file, _parts(snapshot), _fields(snapshot, fingerprint))


def load_index(
    path: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    dimension: int | None = None,
    metric: Metric | None = None,
) -> DocumentIndex:
    """Read an index written by ``save_index``; it answers as the saved one did.

    Args:
        path: the file to read.
        fingerprint: refuse an index whose vectors another embedder made.
        dimension: refuse an index of another dimension.
        metric: refuse an index that compares otherwise.

    Raises:
        IndexFileError: the file is damaged, foreign, of another version or not the expected one.
        ConfigError: the calibration of its early stops is of other clusters, or unreadable.
        OSError: the file cannot be read.
    """
    source = Path(path)
    with source.open("rb") as file:
        footer = read_footer(file, source)
        header = _header(footer, source)
        _check_expected(header, source, fingerprint, dimension, metric)
        parts = read_parts(file, source, footer)
    return DocumentIndex.from_snapshot(_snapshot(header, parts, source))


def read_header(path: str | os.PathLike[str]) -> IndexHeader:
    """Describe a stored index without reading its contents; raises like ``load_index``."""
    source = Path(path)
    with source.open("rb") as file:
        return _header(read_footer(file, source), source)


def _fields(snapshot: IndexSnapshot, fingerprint: str) -> dict[str, Any]:
    spec = asdict(snapshot.spec)
    return {
        "stop": spec.pop("stop"),  # apart: an older reader refuses an unknown field of the spec
        "spec": spec,
        "count": len(snapshot.documents),
        "num_clusters": len(snapshot.clusters.centroids) if snapshot.clusters else 0,
        "fingerprint": fingerprint,
    }


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
        spec = IndexSpec(**footer["spec"], stop=footer.get("stop"))
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
        documents = tuple(map(_document, parts["documents"].splitlines()))
        vectors = _vectors(parts["vectors"], count, spec.dimension, "vector of document")
        clusters, calibration = None, json.loads(parts.get("calibration", b"null"))
        if header.num_clusters:
            clusters = TrainedClusters(
                _vectors(parts["centroids"], header.num_clusters, spec.dimension, "centroid"),
                np.frombuffer(parts["assignments"], dtype="<i8").astype(np.int64),
                _ranges(parts["ranges"], spec.dimension) if spec.codes else None,
            )
    except (KeyError, TypeError, ValueError, RecursionError, EngineOutputError) as error:
        raise damaged(
            path, f"unreadable contents ({error})", "contents as its footer says"
        ) from error
    _check_contents(header, documents, clusters, path)
    return IndexSnapshot(spec, documents, vectors, clusters, calibration)


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
    clusters: TrainedClusters | None,
    path: Path,
) -> None:
    ids = {document.id for document in documents}
    if len(documents) != header.count or len(ids) != header.count:
        raise damaged(
            path,
            f"{len(documents)} documents with {len(ids)} different ids",
            f"{header.count} documents, each with an id of its own",
        )
    if clusters is None:
        return
    assignments, end = clusters.assignments, header.num_clusters
    if assignments.shape != (header.count,) or not np.all((assignments >= 0) & (assignments < end)):
        raise damaged(
            path, "assignments to clusters that do not exist", f"{header.count} from 0 to {end - 1}"
        )
