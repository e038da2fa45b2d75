"""Settings of a lexical index, and the normal form of its texts."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from rag_accel.errors import ConfigError


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
    """Return the normal form of a text, in which terms are matched."""
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
