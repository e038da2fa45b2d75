"""Compare answers of two runs: identical, apart only in a score tie, or different."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TIE = 1e-5


@dataclass(frozen=True, slots=True)
class Comparison:
    """Count pairs of answers. ``different`` holds the questions that are neither."""

    identical: int
    ties: int
    total: int
    different: tuple[str, ...]


def compare(
    store: Any, questions: Sequence[str], plain: Sequence[Any], other: Sequence[Any]
) -> Comparison:
    """Compare text and ordered document ids of each answer."""
    identical, ties = 0, 0
    different: list[str] = []
    for question, left, right in zip(questions, plain, other, strict=True):
        if _key(left) == _key(right):
            identical += 1
        elif _is_tie(store, question, _ids(left), _ids(right)):
            ties += 1
        else:
            different.append(question)
    return Comparison(identical, ties, len(questions), tuple(different))


def total(parts: Iterable[Comparison]) -> Comparison:
    """Add up comparisons."""
    found = list(parts)
    return Comparison(
        sum(one.identical for one in found),
        sum(one.ties for one in found),
        sum(one.total for one in found),
        tuple(question for one in found for question in one.different),
    )


def _key(answer: Any) -> tuple[str, list[str]]:
    return answer["answer"], _ids(answer)


def _ids(answer: Any) -> list[str]:
    return [document.metadata["id"] for document in answer["documents"]]


def _is_tie(store: Any, question: str, left: list[str], right: list[str]) -> bool:
    """Tell whether the documents differ only where scores are closer than ``TIE``."""
    if len(left) != len(right):
        return False
    found = store.similarity_search_with_score(question, k=4 * len(left))
    scores = {document.metadata["id"]: float(score) for document, score in found}
    return left != right and all(
        a in scores and b in scores and abs(scores[a] - scores[b]) < TIE
        for a, b in zip(left, right, strict=True)
        if a != b
    )
