"""LlamaIndex's ``SimpleVectorStore``, as a store that can be searched in a copy of its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from llama_index.core.base.embeddings import base
from llama_index.core.indices.query import embedding_utils
from llama_index.core.vector_stores import simple, types, utils
from llama_index.core.vector_stores.simple import SimpleVectorStore, SimpleVectorStoreData
from llama_index.core.vector_stores.types import VectorStoreQueryResult

from rag_accel.adoption.known_classes import ClassRow
from rag_accel.adoption.store_copies import COPIED, COPIED_UNLESS, Look, Rows, StoreKind, rows_of
from rag_accel.system.classes import does_the_same, is_written_in
from rag_accel.system.methods import plain_class, plain_method

ROW = ClassRow("llama_index.core.vector_stores.simple.SimpleVectorStore", COPIED, COPIED_UNLESS)
_ITS_METHODS = ("query", "aquery")
#: lengths of vectors whose squares and products float64 holds with all its digits
_SHORTEST, _LONGEST = 1e-100, 1e100


def _rows(vectors: Sequence[Any]) -> Rows | None:
    """Return vectors ``[n, d]`` as float64.

    None unless all are lists of floats, for which the store computes in float64, and none is
    zero, whose score would be no number.
    """
    if not all(type(vector) is list and vector and type(vector[0]) is float for vector in vectors):
        return None
    rows = rows_of(vectors)
    if rows is None:
        return None
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    is_usual = (lengths > _SHORTEST) & (lengths < _LONGEST)
    return rows if is_usual.all() else None


def _scores(vector: Any, vectors: list[Any]) -> Any:
    """Return the cosine with each of these, by LlamaIndex's own function."""
    query: Any = np.array(vector)
    return np.array([base.similarity(query, row) for row in np.array(vectors)])


def _found(look: Look, places: Sequence[int], scores: Any) -> Any:
    ids = [look.parts[place] for place in places]
    return VectorStoreQueryResult(similarities=list(scores), ids=ids)


#: A dict of vectors by id; its owner is the store's data, which its twins share.
SIMPLE = StoreKind(
    owner=lambda store: store.data,
    entries=lambda store: getattr(store.data, "embedding_dict", None),
    held=lambda entries: entries.items(),
    vector=itemgetter(1),
    parts=lambda held: list(map(itemgetter(0), held)),
    rows=_rows,
    scores=_scores,
    found=_found,
)


def searches_as_known(cls: type) -> bool:
    """Tell whether stores of a class are ``SimpleVectorStore`` in how they search."""
    if not issubclass(cls, SimpleVectorStore):
        return False
    return does_the_same(cls, SimpleVectorStore, _ITS_METHODS)


def searches_unchanged(store: Any) -> bool:
    """Tell whether nothing was put in the place of what a recognised store searches with.

    Looked at in each search that an engine could do: the store's own attributes, its class as its
    program wrote it, and the functions of LlamaIndex's modules.
    """
    data = vars(store).get("data")
    if type(data) is not SimpleVectorStoreData or type(data.embedding_dict) is not dict:
        return False
    if not vars(store).keys().isdisjoint(_ITS_METHODS):
        return False
    its, cls = vars(simple), plain_class(type(store))
    return (
        vars(embedding_utils).get("default_similarity_fn") is base.similarity
        and is_written_in(base, base.similarity)
        and is_written_in(embedding_utils, its.get("get_top_k_embeddings"))
        and is_written_in(utils, its.get("build_metadata_filter_fn"))
        and is_written_in(simple, plain_method(cls, "query"))
        and is_written_in(types, plain_method(cls, "aquery"))
    )
