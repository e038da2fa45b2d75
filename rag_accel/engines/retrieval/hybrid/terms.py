"""Precomputed scores of texts by BM25 in its Lucene form (Kamphuis et al., ECIR 2020).

The score of a term in a text that holds it ``f`` times, of ``n`` texts of which ``h`` hold it,
where the text has ``l`` terms and the average has ``m``:

    log(1 + (n - h + 1/2) / (h + 1/2)) * f / (f + k1 * (1 - b + b * l / m))

A query adds up the scores of its terms. Nothing here holds a lock or starts a thread, as libraries
that show progress do: what a thread held would be held for ever in a forked child.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec, normalized

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
