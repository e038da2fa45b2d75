"""Terms of texts, their weights, and the scores of documents by them."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.errors import ConfigError

# Say how texts become terms and how terms are weighed. Nothing is tokenised or scored here.


@dataclass(frozen=True, slots=True)
class LexicalSpec:
    """BM25 in its Lucene form (Kamphuis et al., ECIR 2020), whose scores are positive.

    Terms are the matches of ``token_pattern`` in the NFKC-normalised, lower-cased text. Words are
    not stemmed, and scripts without spaces are not segmented: give a pattern that fits them.

    Args:
        k1: how much repetitions of a term in a document add; 0 counts a term once.
        b: how much a document longer than the average is discounted, 0 to 1.
        stopwords: terms to ignore in documents and queries; by default none, for frequent terms
            weigh little anyway and no language is assumed.
        token_pattern: regular expression of one term; what its group matches, if it has one.

    Raises:
        ConfigError: on a value outside its range.
    """

    k1: float = 1.5
    b: float = 0.75
    stopwords: frozenset[str] = frozenset()
    token_pattern: str = r"\w+"

    def __post_init__(self) -> None:
        _check_range("k1", self.k1, 1000.0)
        _check_range("b", self.b, 1.0)
        _check_pattern(self.token_pattern)
        object.__setattr__(self, "stopwords", _normalized(self.stopwords))


def normalized(text: str) -> str:
    """Return the form of a text in which terms are looked for."""
    return unicodedata.normalize("NFKC", text).lower()


def _check_range(name: str, value: Any, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= high):
        raise _bad_option(name, value, f"a number from 0 to {high:g}")


def _check_pattern(pattern: object) -> None:
    valid = "a regular expression with at most one group that does not match the empty text"
    try:
        compiled = re.compile(pattern) if isinstance(pattern, str) else None
    except re.error as error:
        raise _bad_option("token_pattern", pattern, valid) from error
    if compiled is None or compiled.groups > 1 or compiled.match("") is not None:
        raise _bad_option("token_pattern", pattern, valid)


def _normalized(words: object) -> frozenset[str]:
    # The letters of one text would pass for words.
    if not isinstance(words, frozenset | set | list | tuple):
        raise _bad_option("stopwords", words, "a collection of words, not one text")
    for word in words:
        if not isinstance(word, str):
            raise _bad_option("stopwords", word, "words")
    return frozenset(normalized(word) for word in words)


def _bad_option(name: str, value: object, valid: str) -> ConfigError:
    return ConfigError("bad option of a lexical index", where=name, found=repr(value), valid=valid)


# Score texts by BM25 in its Lucene form (Kamphuis et al., ECIR 2020), all scores kept beforehand.
#
# The score of a term in a text that holds it ``f`` times, of ``n`` texts of which ``h`` hold it,
# where the text has ``l`` terms and the average has ``m``:
#
#     log(1 + (n - h + 1/2) / (h + 1/2)) * f / (f + k1 * (1 - b + b * l / m))
#
# A query adds up the scores of its terms. Nothing here holds a lock or starts a thread, as
# libraries that show progress do: what a thread held would be held for ever in a forked child.

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TermScores:
    """The score of each term in each text that has it: 12 bytes an entry. Never changes.

    Args:
        num_texts: places are 0 to this.
        numbers: of the terms.
        starts: ``[terms + 1]``; where the entries of each term begin and the last ones end.
        places: ``[entries]``, int32; texts that hold the term, rising.
        scores: ``[entries]``.
    """

    num_texts: int
    numbers: Mapping[str, int] = field(repr=False)
    starts: npt.NDArray[np.int64] = field(repr=False)
    places: npt.NDArray[np.int32] = field(repr=False)
    scores: Scores = field(repr=False)

    @classmethod
    def of(cls, texts: Iterable[str], spec: LexicalSpec) -> TermScores:
        """Count the terms of texts and score them."""
        numbers: dict[str, int] = {}
        terms, counts = array("q"), array("i")  # an entry for each term of each text
        widths, lengths = array("q"), array("q")  # of the texts: different terms, and all
        for text in texts:
            found = Counter(terms_of(text, spec))
            terms.extend(numbers.setdefault(term, len(numbers)) for term in found)
            counts.extend(found.values())
            widths.append(len(found))
            lengths.append(found.total())
        places = np.repeat(np.arange(len(widths), dtype=np.int32), _numbers(widths))
        order = np.argsort(_numbers(terms), kind="stable")
        held_by = np.bincount(_numbers(terms), minlength=len(numbers))
        scores = _scores(
            _numbers(terms), _numbers(counts), places, held_by, _numbers(lengths), spec
        )
        starts = np.concatenate([[0], np.cumsum(held_by)]).astype(np.int64)
        return cls(len(widths), numbers, starts, places[order], scores[order])

    def of_query(self, terms: Iterable[str]) -> Scores | None:
        """Return the score of each text, ``[num_texts]``; None where no term is known."""
        known = [self.numbers[term] for term in terms if term in self.numbers]
        if not known:
            return None
        entries = [slice(*self.starts[number : number + 2]) for number in known]
        places = np.concatenate([self.places[entry] for entry in entries])
        scores = np.concatenate([self.scores[entry] for entry in entries])
        total: Any = np.bincount(places, weights=scores, minlength=self.num_texts)  # float64
        return total


def terms_of(text: str, spec: LexicalSpec) -> list[str]:
    """Return the terms of a text in their order, repetitions included."""
    found = re.findall(spec.token_pattern, normalized(text))
    return [term for term in found if term not in spec.stopwords] if spec.stopwords else found


def _scores(
    terms: Any, counts: Any, places: Any, held_by: Any, lengths: Any, spec: LexicalSpec
) -> Scores:
    if not len(terms):
        return np.empty(0)
    rarity = np.log(1 + (len(lengths) - held_by + 0.5) / (held_by + 0.5))
    discount = spec.k1 * (1 - spec.b + spec.b * lengths / lengths.mean())
    return rarity[terms] * (counts / (counts + discount[places]))


def _numbers(values: array[int]) -> Any:
    return np.frombuffer(values, dtype=values.typecode)
