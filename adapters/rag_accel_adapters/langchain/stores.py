"""LangChain's ``InMemoryVectorStore``, as a store that can be searched in a copy of its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from rag_accel.adoption.known_classes import ClassRow
from rag_accel.adoption.store_copies import COPIED, COPIED_UNLESS, Look, StoreKind, rows_of
from rag_accel.system.classes import is_written_in
from rag_accel.system.methods import plain_class, plain_method

ROW = ClassRow("langchain_core.vectorstores.in_memory.InMemoryVectorStore", COPIED, COPIED_UNLESS)

#: a document, its score and its vector, as ``InMemoryVectorStore`` finds them
Found = list[tuple[Any, float, Any]]

#: the methods that make an ``InMemoryVectorStore`` what it is
_ITS_METHODS = (
    "_similarity_search_with_score_by_vector",
    "similarity_search_with_score_by_vector",
    "similarity_search_with_score",
    "similarity_search_by_vector",
    "similarity_search",
    "max_marginal_relevance_search_by_vector",
    "max_marginal_relevance_search",
    "asimilarity_search_with_score",
    "asimilarity_search_by_vector",
    "asimilarity_search",
    "amax_marginal_relevance_search",
)
_ITS_NAMES = frozenset(_ITS_METHODS)

Method = Callable[[type, str], object]


def _scores(vector: Any, vectors: list[Any]) -> Any:
    """Return the cosine with each of these as LangChain computes it."""
    query, rows = np.array([vector]), np.array(vectors)
    lengths = np.outer(np.linalg.norm(query, axis=1), np.linalg.norm(rows, axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        similarity = np.dot(query, rows.T) / lengths
    similarity[~np.isfinite(similarity)] = 0.0
    return similarity[0]


def _found(look: Look, places: Sequence[int], scores: Any) -> Found:
    from langchain_core.documents import Document

    ids, texts, metadata = look.parts
    return [
        (
            Document(id=ids[place], page_content=texts[place], metadata=metadata[place]),
            float(score),
            look.vectors[place],
        )
        for place, score in zip(places, scores, strict=True)
    ]


#: Entries are dicts; parts are lists of ids, of texts and of metadata, which may change in them.
IN_MEMORY = StoreKind(
    owner=lambda store: store,
    entries=lambda store: store.store,
    held=lambda entries: entries.values(),
    vector=itemgetter("vector"),
    parts=lambda held: [list(map(itemgetter(part), held)) for part in ("id", "text", "metadata")],
    rows=rows_of,
    scores=_scores,
    found=_found,
)


def searches_as_known(cls: type) -> bool:
    """Tell whether stores of a class are LangChain's ``InMemoryVectorStore`` in how they search."""
    from langchain_core.vectorstores import InMemoryVectorStore

    if not issubclass(cls, InMemoryVectorStore) or cls.__hash__ is not object.__hash__:
        return False
    found = ((plain_method(cls, name), name) for name in _ITS_METHODS)
    return all(method is plain_method(InMemoryVectorStore, name) for method, name in found)


def searches_unchanged(store: Any) -> bool:
    """Tell whether nothing was put in the place of what a recognised store searches with.

    Looked at in each search that an engine could do: the store's own attributes, its class as its
    program wrote it, and the functions of LangChain's modules.
    """
    from langchain_core.vectorstores import in_memory, utils

    its, cls = vars(in_memory), plain_class(type(store))
    if getattr(utils, "_HAS_SIMSIMD", False) or not _ITS_NAMES.isdisjoint(vars(store)):
        return False
    cosine, diverse = utils._cosine_similarity, utils.maximal_marginal_relevance
    if its.get("cosine_similarity") is not cosine or not is_written_in(utils, cosine):
        return False
    if its.get("maximal_marginal_relevance") is not diverse or not is_written_in(utils, diverse):
        return False
    return all(is_written_in(in_memory, plain_method(cls, name)) for name in _ITS_METHODS)
