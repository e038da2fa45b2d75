"""The answers of both arms of the demo, compared, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel_demo.extractive.reader import NO_ANSWER
from rag_accel_demo.levels import Level
from rag_accel_demo.load import Load

TIE = 1e-5

FEW_CHUNKS = 100
FEW_QUESTIONS = 16
"""Sizes below which the demo's figures are mostly chance."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of answers, counted. ``different`` holds the questions that are neither."""

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


def as_json(comparison: Comparison, levels: Sequence[Level], explain: str) -> dict[str, Any]:
    """Return the machine-readable result."""
    return {
        "identical": comparison.identical,
        "ties": comparison.ties,
        "total": comparison.total,
        "different": list(comparison.different),
        "levels": [
            {
                "users": level.users,
                "shape": level.shape,
                "plain_torch_threads": level.plain_threads,
                "plain": _figures(level.plain),
                "accelerated": _figures(level.accelerated),
            }
            for level in levels
        ],
        "explain": explain,
    }


def _figures(load: Load) -> dict[str, float]:
    return {
        "throughput_rps": round(load.throughput_rps, 2),
        "p50_ms": round(load.median_ms, 2),
        "p99_ms": round(load.percentile_ms(0.99), 2),
    }


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer cites, by its number there and the id of its document."""

    number: int
    document: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with its answer and whatever that cites."""

    question: str
    answer: str
    citations: tuple[Citation, ...]


def samples(questions: Sequence[str], answers: Sequence[Any], count: int = 3) -> list[Sample]:
    """Return the first questions that the documents answer, all different, each with its answer."""
    found: dict[str, Sample] = {}
    for question, given in zip(questions, answers, strict=True):
        if given["answer"] != NO_ANSWER and len(found) < count:
            found[question] = Sample(question, given["answer"], tuple(_citations(given)))
    return list(found.values())


def _citations(given: Any) -> Iterator[Citation]:
    for number, document in enumerate(given["documents"], start=1):
        if f"[{number}]" in given["answer"]:
            yield Citation(number, document.metadata["id"], document.page_content)


def sample_text(sample: Sample) -> str:
    """Return a question, its answer and the documents that it cites, as lines."""
    cited = [f"   [{citation.number}] {citation.document}" for citation in sample.citations]
    return "\n".join(["", f"Q: {sample.question}", f"A: {sample.answer}", *cited])


HEAD = ("users", "shape", "arm", "answers/s", "p50 ms", "p99 ms")


def rows(levels: Sequence[Level]) -> list[tuple[str, ...]]:
    """Return throughput and latency of both arms, as texts under ``HEAD``."""
    found: list[tuple[str, ...]] = []
    for level in levels:
        for name, load in (("plain", level.plain), ("accelerated", level.accelerated)):
            figures = [f"{value:.1f}" for value in _figures(load).values()]
            found.append((str(level.users), level.shape, name, *figures))
    return found


def table(head: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as lines, names to the left and numbers to the right."""
    columns = list(zip(head, *found, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numbers = are_numbers(found)

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, numbers, strict=True)
        return "  ".join(text.rjust(w) if number else text.ljust(w) for text, w, number in cells)

    written = line(head)
    return "\n".join([written, "-" * len(written), *map(line, found)])


def are_numbers(found: Sequence[Sequence[str]]) -> list[bool]:
    """Tell of each column of a table whether its texts are numbers."""
    return [all(text[:1].isdigit() for text in column) for column in zip(*found, strict=True)]


def size_note(num_chunks: int, num_questions: int) -> str:
    """Return why the figures say little where there is little to search or to ask, else nothing."""
    if num_chunks >= FEW_CHUNKS and num_questions >= FEW_QUESTIONS:
        return ""
    return (
        f"{num_chunks} chunks and {num_questions} distinct questions are too few to show a "
        "difference in speed: hardly any time goes into searching and embedding, and what is seen "
        f"is mostly chance. Give at least {FEW_CHUNKS} chunks and {FEW_QUESTIONS} questions; the "
        "comparison of the answers holds for any number."
    )


def time_spent(snapshot: dict[str, Any]) -> str:
    """Return where the accelerated arm's time went, one engine a line."""
    lines = [f"{'engine':<58}{'calls':>7}{'mean batch':>12}{'busy s':>9}{'waited ms':>11}"]
    for name, cells in sorted(snapshot.get("engines", {}).items()):
        waited = 1000 * _mean(cells["queue_wait_s"])
        lines.append(
            f"{_short(name, 57):<58}{cells['steps']:>7}{_mean(cells['batch_size']):>12.1f}"
            f"{cells['step_s']['sum']:>9.2f}{waited:>11.2f}"
        )
    return "\n".join(lines)


def _short(name: str, width: int) -> str:
    """Return a dotted name without as many leading parts as it must lose to fit."""
    while len(name) > width and "." in name:
        name = name.partition(".")[2]
    return name[-width:]


def _mean(histogram: dict[str, Any]) -> float:
    return histogram["sum"] / histogram["count"] if histogram["count"] else 0.0
