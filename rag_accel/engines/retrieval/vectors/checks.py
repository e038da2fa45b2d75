"""Checks of what callers hand to an index, before anything is changed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval.vectors.spec import Vectors, check_positive, norms
from rag_accel.errors import ConfigError, EngineOutputError

MAX_NORM = 1e18
"""Longest vector taken: the square of the sum of two such lengths still fits into float32."""


def checked_vectors(
    value: Any, dimension: int, name: Callable[[int], str], count: int | None = None
) -> Vectors:
    """Return ``value`` as C-contiguous ``[count, dimension], float32``.

    Args:
        value: anything NumPy takes for a matrix; an empty list is one without rows.
        dimension: length of each row.
        name: says what a row belongs to, for messages.
        count: number of rows; None takes any.

    Raises:
        ConfigError: not a matrix of numbers of that shape.
        EngineOutputError: a row holds NaN, an infinity, or is too long for float32 distances; such
            rows come from a faulty embedder.
    """
    vectors = _as_float32(value)
    if vectors.shape == (0,):
        vectors = vectors.reshape(0, dimension)
    if vectors.shape != (vectors.shape[:1] if count is None else (count,)) + (dimension,):
        raise _wrong_shape(vectors, f"({'n' if count is None else count}, {dimension})")
    for row in np.flatnonzero(~(norms(vectors) <= MAX_NORM))[:1].tolist():
        raise EngineOutputError(
            "a vector that cannot be compared",
            where=name(row),
            found=_describe(vectors[row]),
            valid=f"finite numbers, length at most {MAX_NORM:g}",
            hint="look at the embedder that made it",
        )
    return vectors


def checked_query(value: Any, dimension: int) -> Vectors:
    """Return one query vector as ``[dimension], float32``; raises like ``checked_vectors``."""
    vector = _as_float32(value)
    if vector.shape != (dimension,):
        raise _wrong_shape(vector, f"({dimension},)")
    return checked_vectors(vector[None, :], dimension, lambda row: "query")[0]


def checked_documents(documents: Sequence[Document]) -> list[Document]:
    """Return copies that later changes by the caller do not reach; ConfigError on a bad one."""
    return [_checked_document(position, document) for position, document in enumerate(documents)]


def checked_ids(ids: Iterable[str]) -> list[str]:
    """Return ids as a list; ConfigError on one text, or on anything in it that is no text."""
    if isinstance(ids, str | bytes):  # its letters would pass for ids
        raise ConfigError(
            "bad ids", where="ids", found=repr(ids), valid="several ids, not one text"
        )
    wanted = list(ids)
    for place, id in enumerate(wanted):
        if not isinstance(id, str):
            raise ConfigError("bad id", where=f"ids[{place}]", found=repr(id), valid="text")
    return wanted


def check_filter(where: object, nprobe: object) -> None:
    """Raise ConfigError unless ``where`` is None or a mapping and ``nprobe`` None or positive."""
    if where is not None and not isinstance(where, Mapping):
        raise ConfigError(
            "bad metadata filter",
            where="where",
            found=type(where).__name__,
            valid="a mapping of metadata fields to the values they must equal",
        )
    if nprobe is not None:
        check_positive("nprobe", nprobe)


def check_count(k: object) -> None:
    """Raise ConfigError unless ``k`` is an integer; zero and below ask for nothing."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise ConfigError(
            "bad number of results", where="k", found=repr(k), valid="an integer; <= 0 finds none"
        )


def copy_document(document: Document) -> Document:
    """Return the document with a metadata mapping of its own (values are shared)."""
    return Document(document.id, document.text, dict(document.metadata))


def _as_float32(value: Any) -> Vectors:
    try:
        # A float64 beyond float32's range becomes an infinity, which is refused by name later.
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "vectors that are not numbers",
            where="index",
            found=type(value).__name__,
            valid="a rectangular array of numbers",
        ) from error


def _wrong_shape(vectors: Vectors, valid: str) -> ConfigError:
    return ConfigError(
        "vectors of the wrong shape",
        where="index",
        found=f"shape {vectors.shape}",
        valid=f"shape {valid}",
        hint="embed with the model this index was made for, one row for each item",
    )


def _describe(row: Vectors) -> str:
    for position in np.flatnonzero(~np.isfinite(row))[:1]:
        return f"{row[position]} at position {position}"
    return f"length {float(norms(row[None, :])[0]):g}"


def _checked_document(position: int, document: object) -> Document:
    if not isinstance(document, Document):
        raise ConfigError(
            "not a document",
            where=f"documents[{position}]",
            found=type(document).__name__,
            valid="rag_accel.engine_api.Document",
        )
    fields = (("id", document.id, str), ("text", document.text, str))
    for name, value, kind in (*fields, ("metadata", document.metadata, Mapping)):
        if not isinstance(value, kind):
            raise ConfigError(
                "bad field of a document",
                where=f"documents[{position}].{name}",
                found=type(value).__name__,
                valid=kind.__name__,
            )
    # A subclass of text may compare and hash in ways of its own: an id becomes plain text.
    id = str.__str__(document.id)
    return copy_document(Document(id, document.text, document.metadata))
