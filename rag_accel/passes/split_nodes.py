"""Large waiting primitives, split into sub-stages of similar cost (HedraRAG section 4.2).

What is queued may be a whole document upload, or many pairs to be reranked. Such a primitive enters
its engine in parts, one after the other: sequentially dependent sub-nodes, so that newer and
smaller work joins at each border. How many items a part has is decided when it starts, from the
time budget of a step and what the items before it have cost. As that is decided for each primitive
when it is about to run, it does not matter how it came into its graph.

Here is what a part of a payload is, and what the parts' results make together. The result equals
that of the whole: rows keep their places, and equal scores keep the order of the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from rag_accel.engine_api import PrimitiveKind, RerankBatch, ScoredDocument, TextBatch
from rag_accel.errors import EngineOutputError

SPLIT_KINDS: Final = frozenset({PrimitiveKind.EMBEDDING, PrimitiveKind.RERANKING})
"""Kinds whose items have results of their own. An ingestion is taken whole or not at all."""


def part_of(payload: Any, start: int, stop: int | None) -> Any:
    """Return the items from ``start`` to ``stop`` as a payload; ``None`` if it has no items.

    ``stop=None`` takes all that are left.
    """
    if isinstance(payload, TextBatch):
        return replace(payload, texts=tuple(payload.texts[start:stop]))
    if isinstance(payload, RerankBatch):
        return replace(payload, documents=tuple(payload.documents[start:stop]))
    return None


def joined(
    payload: TextBatch | RerankBatch, results: Sequence[Any], where: str = "reranking"
) -> Any:
    """Return the result of a payload from those of its parts, in their order.

    Vectors: ``[len(texts), dim], float32``. Documents: ``tuple[ScoredDocument, ...]``, best first.
    The best ``top_n`` of all are among the best ``top_n`` of each part.

    Raises:
        EngineOutputError: if documents were asked for and a part is no ranking; names ``where``.
    """
    if isinstance(payload, TextBatch):
        return np.concatenate(results)
    for part in results:
        _check_ranking(part, where)
    documents: list[ScoredDocument] = [document for part in results for document in part]
    # Stable, also in reverse: equal scores keep the order of the documents.
    documents.sort(key=lambda document: document.score, reverse=True)
    return tuple(documents[: payload.top_n])


def _check_ranking(ranking: Any, where: str) -> None:
    found = cast("Any", ranking) if isinstance(ranking, list | tuple) else (ranking,)
    wrong = [
        type(document).__name__ for document in found if not isinstance(document, ScoredDocument)
    ]
    if wrong:
        raise EngineOutputError(
            "a reranker returned something that is no ranking",
            where=where,
            found=wrong[0],
            valid="ScoredDocuments, best first",
        )
