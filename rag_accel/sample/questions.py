"""Make questions a developer could ask of a corpus, out of the corpus itself."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_accel.engine_api import Document
from rag_accel.engines.llm.extractive.sentences import STOPWORDS
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample.question_forms import RULES, read_facts, short_title

# Load a user's own questions from a file.

_MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """Pair a question with the id of the document it was made from, if it was made."""

    text: str
    source_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedQuestions:
    """Hold the distinct questions of a file in its order, and how many repeats were dropped."""

    questions: tuple[Question, ...]
    duplicates: int = 0


def load_questions(path: str | Path) -> LoadedQuestions:
    """Load questions from a UTF-8 file: one a line, or a JSON list of strings in a ``.json`` file.

    Blank lines are ignored; a question that differs from an earlier one only in case or white
    space is dropped and counted.

    Raises:
        DocumentError: if the file is missing, no text, no list of strings, too large or empty.
    """
    file = Path(path)
    texts = _json_texts(file) if file.suffix.lower() == ".json" else _text(file).splitlines()
    cleaned = [" ".join(text.split()) for text in texts]
    asked = [text for text in cleaned if text]
    if not asked:
        raise DocumentError("no questions", where=str(file), valid="one question a line")
    distinct = {text.casefold(): text for text in reversed(asked)}
    questions = tuple(Question(text) for text in reversed(distinct.values()))
    return LoadedQuestions(questions, len(asked) - len(questions))


def _json_texts(file: Path) -> list[str]:
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DocumentError("questions are not JSON", where=str(file), found=str(error)) from error
    if not isinstance(found, list):
        raise DocumentError(
            "questions are no list",
            where=str(file),
            found=type(found).__name__,
            valid="a JSON list of strings",
        )
    for index, item in enumerate(found):
        if not isinstance(item, str):
            raise DocumentError(
                "a question is no text",
                where=f"{file}, item {index}",
                found=type(item).__name__,
                valid="a JSON list of strings",
            )
    return found


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise DocumentError(
                "questions file is too large", where=str(file), valid=f"{_MAX_FILE_BYTES} bytes"
            )
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(
            "cannot read questions", where=str(file), found=error.strerror
        ) from error
    except UnicodeDecodeError as error:
        raise DocumentError(
            "questions are not UTF-8", where=f"{file}, byte {error.start}"
        ) from error


DEFAULT_COUNT = 200
MIN_WORDS = 8
MAX_WORDS = 25
_STRIDE = 0.6180339887498949


def make_questions(
    documents: Sequence[Document], count: int = DEFAULT_COUNT
) -> tuple[Question, ...]:
    """Make up to ``count`` distinct questions of 8 to 25 words from the documents themselves.

    The documents are visited in a fixed order that spreads over all of them, and the kinds of
    questions take turns, so equal documents give equal questions in any process. A small corpus
    gives as many as it has.

    Raises:
        ConfigError: if ``count`` is below 1.
    """
    if count < 1:
        raise ConfigError("bad number of questions", where="count", found=count, valid="1 or more")
    used: Counter[str] = Counter()
    chosen: dict[str, Question] = {}
    waiting: Iterator[_Source] = map(_source, _spread(documents))
    while len(chosen) < count:
        again: list[_Source] = []
        for source in waiting:
            text = _take(source, used, chosen)
            if text is not None:
                chosen[text.casefold()] = Question(text, source.document.id)
                again.append(source)
            if len(chosen) == count:
                break
        if not again:
            break
        waiting = iter(again)
    if len(chosen) < count:
        _add_term_questions(documents, count, chosen)
    return tuple(chosen.values())


@dataclass(frozen=True, slots=True)
class _QuestionCandidate:
    rule: str
    weight: float
    forms: tuple[str, ...]
    place: int


@dataclass(slots=True)
class _Source:
    """Hold what can be asked of a document, by rule and in the order of its sentences."""

    document: Document
    candidates: dict[str, deque[_QuestionCandidate]]


def _spread(documents: Sequence[Document]) -> list[Document]:
    """Order documents so that any first few of them come from all over the corpus."""
    order = sorted(range(len(documents)), key=lambda index: (index * _STRIDE) % 1.0)
    return [documents[index] for index in order]


def _source(document: Document) -> _Source:
    """Collect what can be asked of a document: for each sentence, by the first rule that fits."""
    candidates: dict[str, deque[_QuestionCandidate]] = {}
    for place, fact in enumerate(read_facts(document)):
        for rule, weight in RULES:
            forms = rule(fact)
            if forms is not None:
                name = rule.__name__
                found = _QuestionCandidate(name, weight, forms, place)
                candidates.setdefault(name, deque()).append(found)
                break
    return _Source(document, candidates)


def _take(source: _Source, used: Counter[str], chosen: dict[str, Question]) -> str | None:
    """Take a question of the kind that was used least so far, considering its weight."""
    while source.candidates:
        first = (queue[0] for queue in source.candidates.values())
        rarest = min(first, key=lambda one: (used[one.rule] / one.weight, one.place))
        queue = source.candidates[rarest.rule]
        queue.popleft()
        if not queue:
            del source.candidates[rarest.rule]
        turn = used[rarest.rule] % len(rarest.forms)
        for text in (*rarest.forms[turn:], *rarest.forms[:turn]):
            fits = MIN_WORDS <= len(text.split()) <= MAX_WORDS
            if fits and text.casefold() not in chosen:
                used[rarest.rule] += 1
                return text
    return None


def _add_term_questions(
    documents: Sequence[Document], count: int, chosen: dict[str, Question]
) -> None:
    """Ask each document in turn about two words that are frequent in it and rare in the others."""
    words = [_content_words(document.text) for document in documents]
    spread = Counter(word for one in words for word in set(one))
    pairs = [_rare_pairs(Counter(one), spread) for one in words]
    waiting = list(zip(documents, pairs, strict=True))
    while waiting:
        again: list[tuple[Document, Iterator[tuple[str, str]]]] = []
        for document, own in waiting:
            pair = next(own, None)
            if len(chosen) >= count:
                return
            if pair is not None:
                again.append((document, own))
                title = short_title(str(document.metadata.get("title", document.id)))
                text = f"What do the documents on {title} say about {' and '.join(pair)}?"
                if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
                    chosen.setdefault(text.casefold(), Question(text, document.id))
        waiting = again


def _rare_pairs(own: Counter[str], spread: Counter[str]) -> Iterator[tuple[str, str]]:
    rare = sorted(own, key=lambda word: (-own[word] / spread[word], word))
    return zip(rare[:-1:2], rare[1::2], strict=False)


def _content_words(text: str) -> list[str]:
    words = re.findall(r"[^\W\d_]{5,}", text.lower())
    return [word for word in words if word not in STOPWORDS]
