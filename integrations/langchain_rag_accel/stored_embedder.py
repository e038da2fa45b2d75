"""Tell whether embeddings make the vectors of a stored index: by what they compute, not by name.

A name says too little: one class makes many kinds of vectors, and a model keeps its vectors when it
is moved. So a few of the stored documents are embedded again and compared with what is stored. That
needs nothing in the file that older ones lack, and no call of the embeddings when saving.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from rag_accel.engines.retrieval import DocumentIndex, read_header
from rag_accel.errors import IndexFileError

NUM_COMPARED = 3

MAX_DIFFERENCE = 0.1
"""Of two vectors, in lengths of the longer one: a cosine of 0.995.

Rounding to bfloat16 moves a vector by 0.004 of its length at most; unrelated ones are 1.4 apart.
"""


def embedder_name(embedding: Embeddings) -> str:
    """Return what to call embeddings: class and model, without the folder it lies in."""
    name = getattr(embedding, "model_name", None) or getattr(embedding, "model", None)
    cls = type(embedding)
    model = f" {os.path.basename(os.path.normpath(name))}" if isinstance(name, str) else ""
    return f"{cls.__module__}.{cls.__qualname__}{model}"


def check_embedder(
    index: DocumentIndex,
    path: str | os.PathLike[str],
    embedding: Embeddings,
    scaled: Callable[[Sequence[Sequence[float]]], Any],
) -> None:
    """Raise IndexFileError unless these embeddings make the vectors of an index.

    Args:
        index: as loaded.
        path: where from.
        embedding: called once, with up to ``NUM_COMPARED`` documents.
        scaled: brings vectors to the length they are held in.
    """
    texts, stored = _sample(index)
    made = scaled(embedding.embed_documents(texts))
    found = _difference(made, len(texts), stored, index.spec.dimension)
    if found is None:
        return
    raise IndexFileError(
        "a stored index of another embedder",
        where=str(path),
        found=f"{embedder_name(embedding)}, {found}",
        valid=f"one that makes the vectors of {read_header(path).fingerprint!r}, "
        f"dimension {index.spec.dimension}, within {MAX_DIFFERENCE:g} of their length",
        hint="use the embedder the index was made with, or build the index again; if its vectors "
        "were not made of the documents' texts, pass check_embedder=False",
    )


def _sample(index: DocumentIndex) -> tuple[list[str], Any]:
    """Return the first, middle and last text with their vectors ``[n, dim]``.

    Of an empty index it is any text without a vector, which shows at least the dimension.
    """
    with index.reading():
        view = index.view()
        labels = view.documents.labels()
        if not len(labels):
            return ["text"], None
        places = np.unique(np.linspace(0, len(labels) - 1, NUM_COMPARED).astype(np.int64))
        texts = [view.documents[label].text for label in labels[places].tolist()]
        return texts, view.vectors.gather(labels[places]).astype(np.float64)


def _difference(made: Any, count: int, stored: Any, dimension: int) -> str | None:
    """Say in what vectors differ; None where they do not."""
    if made.shape != (count, dimension):
        return f"vectors of shape {made.shape} for {count} texts"
    if stored is None:
        return None
    lengths = np.maximum(np.linalg.norm(made, axis=1), np.linalg.norm(stored, axis=1))
    apart = np.linalg.norm(made - stored, axis=1)
    is_same = np.isfinite(apart) & (apart <= MAX_DIFFERENCE * lengths)
    if is_same.all():
        return None
    worst = float(np.max(apart[~is_same] / lengths[~is_same]))
    return f"vectors that are {worst:.2g} of their length away from the stored ones"
