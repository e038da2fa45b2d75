"""Make questions a developer could ask of a corpus, out of the corpus itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_accel.engine_api import Document
from rag_accel.engines.llm.sentences import STOPWORDS
from rag_accel.errors import ConfigError
from rag_accel.sample.facts import read_facts, short_title
from rag_accel.sample.question_files import Question
from rag_accel.sample.question_forms import RULES

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
class _Candidate:
    rule: str
    weight: float
    forms: tuple[str, ...]


@dataclass(slots=True)
class _Source:
    document: Document
    candidates: list[_Candidate]


def _spread(documents: Sequence[Document]) -> list[Document]:
    """Order documents so that any first few of them come from all over the corpus."""
    order = sorted(range(len(documents)), key=lambda index: (index * _STRIDE) % 1.0)
    return [documents[index] for index in order]


def _source(document: Document) -> _Source:
    """Collect what can be asked of a document: for each sentence, by the first rule that fits."""
    candidates: list[_Candidate] = []
    for fact in read_facts(document):
        for rule, weight in RULES:
            forms = rule(fact)
            if forms is not None:
                candidates.append(_Candidate(rule.__name__, weight, forms))
                break
    return _Source(document, candidates)


def _take(source: _Source, used: Counter[str], chosen: dict[str, Question]) -> str | None:
    """Take a question of the kind that was used least so far, considering its weight."""
    while source.candidates:
        rarity = [used[one.rule] / one.weight for one in source.candidates]
        candidate = source.candidates.pop(rarity.index(min(rarity)))
        turn = used[candidate.rule] % len(candidate.forms)
        for text in (*candidate.forms[turn:], *candidate.forms[:turn]):
            fits = MIN_WORDS <= len(text.split()) <= MAX_WORDS
            if fits and text.casefold() not in chosen:
                used[candidate.rule] += 1
                return text
    return None


def _add_term_questions(
    documents: Sequence[Document], count: int, chosen: dict[str, Question]
) -> None:
    """Ask each document in turn about two words that are frequent in it and rare in the others."""
    words = [_content_words(document.text) for document in documents]
    spread = Counter(word for one in words for word in set(one))
    pairs = [list(_rare_pairs(Counter(one), spread)) for one in words]
    for turn in range(max(map(len, pairs), default=0)):
        for document, own in zip(documents, pairs, strict=True):
            if len(chosen) >= count:
                return
            if turn < len(own):
                title = short_title(str(document.metadata.get("title", document.id)))
                text = f"What do the documents on {title} say about {' and '.join(own[turn])}?"
                if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
                    chosen.setdefault(text.casefold(), Question(text, document.id))


def _rare_pairs(own: Counter[str], spread: Counter[str]) -> Iterator[tuple[str, str]]:
    rare = sorted(own, key=lambda word: (-own[word] / spread[word], word))
    return zip(rare[:-1:2], rare[1::2], strict=False)


def _content_words(text: str) -> list[str]:
    words = re.findall(r"[^\W\d_]{5,}", text.lower())
    return [word for word in words if word not in STOPWORDS]
