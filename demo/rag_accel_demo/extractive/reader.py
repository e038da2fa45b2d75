"""Answers made of the best-supported sentences of passages, each with its citation.

What it is: a reader for machines without a language model. It ranks the sentences of the
passages it is given by the idf-weighted overlap of their stems with the question's, like BM25
over sentences, with a share for the passage's title, a small prior for early sentences and early
passages, and a penalty for repeating what was already said. What it is not: it generates nothing,
reasons about nothing, joins no facts, understands no synonym, and reads English best. Every
sentence it returns stands in a passage; when too little of the question stands there it says so.

Deterministic, pure Python, without state between calls: equal input gives equal output in any
process, and no result is cached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_accel.engine_api import Document
from rag_accel.sample.sentences import split_sentences

try:
    from Stemmer import Stemmer
except ImportError as error:
    raise ImportError(
        "the extractive reader needs PyStemmer: pip install 'rag-accel[local]'", name="Stemmer"
    ) from error

# Without the stemmer's cache: it would keep what users ask.
_STEMMER = Stemmer("english", 0)

WORD = re.compile(r"[^\W_]+")

NO_ANSWER = "The documents do not answer this."

_WEAK_WEIGHT = 0.3
_TITLE_SHARE = 0.5
_FIRST_SENTENCE_BONUS = 0.15
_RANK_STEP = 0.06
_SUPPORTED_SHARE = 0.4
_KEEP_SHARE = 0.6
_KEEP_SHARE_SAME = 0.45
_KEEP_SHARE_NEAR = 0.25
_MENTIONED_SHARE = 0.6
_REPEATED_SHARE = 0.75
_WORDS_EXPECTED = 22.0
_BEGINNING = 2
_COMPLETE = re.compile(r"[.!?][\"')\]`\u201d\u2019]*$")


@dataclass(slots=True)
class _Candidate:
    passage: int
    position: int
    text: str
    words: list[str]
    stems: frozenset[str]
    title_stems: frozenset[str]
    score: float = 0.0

    @property
    def order(self) -> tuple[int, int]:
        return self.passage, self.position


def find_answer(
    question: str, passages: Sequence[Document], max_sentences: int = 3
) -> tuple[str, ...]:
    """Return up to ``max_sentences`` sentences that support an answer, in reading order.

    Each is followed by its citation, the 1-based number of its passage. Without support, as far as
    word overlap can tell, the only sentence is ``NO_ANSWER``. A passage's title is its
    ``metadata["title"]``.
    """
    terms = _question_stems(question)
    candidates = _candidates(terms, passages)
    weights = _weights(terms, candidates)
    for candidate in candidates:
        if candidate.stems or candidate.title_stems:
            candidate.score = _score(candidate, weights)
    candidates.sort(key=lambda candidate: (-candidate.score, candidate.order))
    if not candidates or not _is_supported(candidates[0], weights):
        return (NO_ANSWER,)
    chosen = _choose(candidates, weights, max(1, max_sentences))
    return tuple(_cited(each) for each in sorted(chosen, key=lambda each: each.order))


def _question_stems(question: str) -> frozenset[str]:
    stems: set[str] = set()
    for word in WORD.findall(question.lower()):
        if word not in STOPWORDS and (len(word) > 1 or word.isdigit()):
            stems.add(stem(word))
    return frozenset(stems)


def _candidates(terms: frozenset[str], passages: Sequence[Document]) -> list[_Candidate]:
    beginnings = frozenset(term[:_BEGINNING] for term in terms)
    found: list[_Candidate] = []
    for number, passage in enumerate(passages):
        title = WORD.findall(str(passage.metadata.get("title", "")).lower())
        title_stems = _matched(title, terms, beginnings)
        for position, sentence in enumerate(filter(_says_something, split_sentences(passage.text))):
            words = WORD.findall(sentence.lower())
            stems = _matched(words, terms, beginnings)
            found.append(_Candidate(number, position, sentence, words, stems, title_stems))
    return found


def _says_something(sentence: str) -> bool:
    """Tell a sentence from a heading or a name: it has three words or the end of a sentence."""
    return sentence.count(" ") >= 2 or _COMPLETE.search(sentence) is not None


def _matched(
    words: Sequence[str], terms: frozenset[str], beginnings: frozenset[str]
) -> frozenset[str]:
    """Stem only words that begin like a term: stemming all of them is most of the cost."""
    alike = {word for word in words if word[:_BEGINNING] in beginnings}
    return terms.intersection(map(stem, alike))


def _weights(terms: frozenset[str], found: Sequence[_Candidate]) -> dict[str, float]:
    """Return each term's weight, from 1 in every sentence to 2 in none, in an order that repeats.

    The idf is damped because a few passages are too little text to trust it further.
    """
    weights: dict[str, float] = {}
    rarest = math.log(len(found) + 1.0) or 1.0
    for term in sorted(terms):
        count = [term in candidate.stems for candidate in found].count(True)
        idf = math.log((len(found) + 1.0) / (count + 1.0)) / rarest
        weights[term] = (1.0 + idf) * (_WEAK_WEIGHT if term in WEAK_STEMS else 1.0)
    return weights


def _score(candidate: _Candidate, weights: Mapping[str, float]) -> float:
    evidence = 0.0
    for term, weight in weights.items():
        if term in candidate.stems:
            evidence += weight
        elif term in candidate.title_stems:
            evidence += weight * _TITLE_SHARE
    length = len(candidate.words)
    score = evidence / (0.7 + 0.3 * max(length, 8) / _WORDS_EXPECTED)
    score *= 1.0 + _FIRST_SENTENCE_BONUS / (1 + candidate.position)
    score *= 1.0 - min(_RANK_STEP * candidate.passage, 0.5)
    return score * _form(candidate.text, length)


def _form(text: str, length: int) -> float:
    """Return how much a sentence looks like one: headings, lead-ins and code count less."""
    if length < 4 or text.startswith(">>>"):
        return 0.3
    if text.endswith((":", "?")):
        return 0.6
    return 1.0 if _COMPLETE.search(text) else 0.85


def _is_supported(best: _Candidate, weights: Mapping[str, float]) -> bool:
    """Tell whether enough of the question's words stand in the sentence or above it."""
    shown = best.stems | best.title_stems
    strong = [term for term in weights if term not in WEAK_STEMS]
    matched = sum(term in shown for term in strong)
    return (
        matched >= min(2, len(strong)) and matched >= _SUPPORTED_SHARE * len(strong) and matched > 0
    )


def _choose(
    ranked: Sequence[_Candidate], weights: Mapping[str, float], limit: int
) -> list[_Candidate]:
    """Take the best sentence, then those that add most to the ones taken."""
    best = ranked[0]
    chosen = [best]
    pool = [other for other in ranked[1:] if other.score >= _floor(other, best)]
    while pool and len(chosen) < limit:
        said = frozenset[str]().union(*(sentence.stems for sentence in chosen))
        gains = [_gain(other, said, weights) / _floor(other, best) for other in pool]
        at = max(range(len(pool)), key=lambda index: (gains[index], -index))
        if gains[at] < 1.0:
            break
        candidate = pool.pop(at)
        if not any(_repeats(candidate, other) for other in chosen):
            chosen.append(candidate)
    return chosen


def _floor(candidate: _Candidate, best: _Candidate) -> float:
    """Return the score a further sentence needs: less if it opens or follows up the best one."""
    if candidate.passage != best.passage:
        return _KEEP_SHARE * best.score
    is_near = candidate.position in (0, best.position + 1)
    return best.score * (_KEEP_SHARE_NEAR if is_near else _KEEP_SHARE_SAME)


def _gain(candidate: _Candidate, said: frozenset[str], weights: Mapping[str, float]) -> float:
    """Return the score, lower the more of its terms were already said."""
    shown = new = 0.0
    for term, weight in weights.items():
        if term in candidate.stems:
            shown += weight
            new += 0.0 if term in said else weight
    share = new / shown if shown else 0.0
    return candidate.score * (_MENTIONED_SHARE + (1.0 - _MENTIONED_SHARE) * share)


def _repeats(candidate: _Candidate, other: _Candidate) -> bool:
    mine, theirs = set(candidate.words), set(other.words)
    return len(mine & theirs) >= _REPEATED_SHARE * min(len(mine), len(theirs))


def _cited(candidate: _Candidate) -> str:
    text = candidate.text.rstrip()
    if not _COMPLETE.search(text):
        text = text.rstrip(" :;,")
        text = text if text.endswith(".") else f"{text}."
    return f"{text} [{candidate.passage + 1}]"


def stem(word: str) -> str:
    """Return the Snowball stem of a lower-case English word, so that relatives compare equal.

    "serialize", "serialized" and "serialization" all become "serial".
    """
    return _STEMMER.stemWord(word)


# Words of the form of a question, not of its subject.
STOPWORDS = frozenset(
    WORD.findall("""
    a about according actually all also am an and another any anything are as at available be
    because been before being between both but by can case cases could did do does doing done else
    every exactly example for from further get gets getting give given gives had happen happens has
    have having help her here his how i if in instead into is it its itself just know let lets like
    looking made make makes many may me mean means might more most much must my need needed needs no
    not of off on one only or other our out over own please possible rather same say says shall she
    should situation so some something such supposed take takes tell than that the their them then
    there these they thing things this those through to too under up upon us use used useful uses
    using very want wants was way we were what whatever when where whether which while who whom
    whose why will with within without would you your
    """)
)

# Words nearly every technical text contains: they rank a little and prove nothing.
WEAK_STEMS = frozenset(
    stem(word)
    for word in WORD.findall("""
    argument behave behaviour behavior best call class code context correct default describe
    description different document documentation easiest expect explain expected find found
    function good guide handle important learn library manual meant method module name obtain
    object offer option package parameter part provide purpose python reading reference result
    retrieve return returned right role set show simplest start type user value work working
    """)
)
