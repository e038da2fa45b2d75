"""A parser of ``/embeddings`` answers: each vector once, in order, of real numbers."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

import numpy as np

from rag_accel.engines.embedding.checked_vectors import Vector


class AnswerFault(Exception):
    """An answer that cannot be right: the fault, and the found value."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(what, found)
        self.what = what
        self.found = found


class EmbeddingsAnswer(NamedTuple):
    """The vectors of an answer.

    Args:
        vectors: ``[count, dim], float32``, each of a finite length above 0.
        model: the model it names, None if it names none.
    """

    vectors: Vector
    model: str | None


def parse_embeddings(body: bytes, count: int) -> EmbeddingsAnswer:
    """Return the vectors of an answer by their ``index``, and the model it names.

    Args:
        body: JSON of an OpenAI-compatible server; vectors as lists or in base64.
        count: how many texts were sent.

    Raises:
        AnswerFault: no such JSON, a wrong number of vectors, an index that is missing or comes
            twice, different dimensions, what is no number, NaN, infinity, or a length that is 0 or
            beyond float32.
    """
    try:
        answer = json.loads(body)
        data, model = answer["data"], answer.get("model")
        rows = [(item["index"], item["embedding"]) for item in data]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        beginning = body[:1000].decode("utf-8", "replace")
        raise AnswerFault("the answer is no list of embeddings", beginning) from None
    if len(rows) != count:
        raise AnswerFault("wrong number of vectors", f"{len(rows)} for {count} texts")
    indexes = [index for index, _ in rows]
    if any(type(index) is not int for index in indexes) or sorted(indexes) != list(range(count)):
        raise AnswerFault("an index of a vector is missing or wrong", str(indexes[:16]))
    vectors: list[Any] = [None] * count
    for index, value in rows:
        vectors[index] = _vector(value, index)
    if len({len(vector) for vector in vectors}) != 1:
        sizes = sorted({len(vector) for vector in vectors})
        raise AnswerFault("vectors of different dimensions", str(sizes[:16]))
    table = np.stack(vectors)
    _require_lengths(table)
    return EmbeddingsAnswer(table, model if isinstance(model, str) else None)


def _require_lengths(table: Vector) -> None:
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        raise AnswerFault("a vector is not finite", f"vector {int(np.argmin(finite))}")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        squares = np.einsum("ij,ij->i", table, table)
    bad = ~np.isfinite(squares) | ~table.any(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise AnswerFault("the length of a vector is 0 or no float32", f"vector {row}")


def _vector(value: Any, index: int) -> Vector:
    try:
        if isinstance(value, str):
            decoded = base64.b64decode(value, validate=True)
            vector = np.frombuffer(decoded, dtype="<f4").astype(np.float32)
        elif not set(map(type, value)) <= {int, float}:  # NumPy reads true and "1.0" as 1
            raise ValueError
        else:
            with np.errstate(over="ignore"):  # becomes infinite, which is refused
                vector = np.array(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError, binascii.Error):
        vector = np.empty(0, dtype=np.float32)
    if vector.ndim != 1 or not len(vector):
        raise AnswerFault("an embedding is no vector of numbers", f"vector {index}")
    return vector
