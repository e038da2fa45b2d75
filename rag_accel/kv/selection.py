"""Selectors of the tokens of reused texts to recompute (FusionRAG section 4.2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: The rows of a prompt whose attention to the tokens of its texts is measured.
Asked = Literal["none", "last", "question"]


class TokenSelector(Protocol):
    """A choice of the tokens of a prompt's texts that are recomputed."""

    @property
    def asked(self) -> Asked:
        """Return the rows whose attention the choice needs: none, the last, the question's."""
        ...

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places to recompute, at most ``count``, ascending.

        Args:
            scores: of each place of the prompt, the attention it got, meaned over heads and summed
                over the rows asked; empty where none is.
            candidates: the places of each text, in the order of the prompt.
            count: most places.
        """
        ...


@dataclass(frozen=True)
class QuestionGuided:
    """The tokens that the question attends to most.

    Args:
        asked: whose attention counts: ``last``, the prompt's last token, the better measured;
            ``question``, all behind the last text, the paper's.
    """

    asked: Literal["last", "question"] = "last"

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places with the greatest scores; of equal ones the first."""
        places = [at for places in candidates for at in places]
        return sorted(sorted(places, key=lambda at: -scores[at])[:count])


class FirstTokens:
    """The first tokens of each text; needs no scores."""

    asked: Asked = "none"

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places, the texts taking turns."""
        depths = sorted(
            (depth, at) for candidate in candidates for depth, at in enumerate(candidate)
        )
        return sorted(at for _, at in depths[:count])


class RandomTokens:
    """Random tokens, a baseline for the other selectors; needs no scores.

    Args:
        seed: the same places for the same prompt.
    """

    asked: Asked = "none"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places."""
        places = [at for places in candidates for at in places]
        chance = random.Random(f"{self._seed} {len(places)} {count}")
        return sorted(chance.sample(places, min(count, len(places))))


def without(places: Sequence[range], chosen: Sequence[int]) -> tuple[range, ...]:
    """Return the rest of ranges, in order, without chosen places."""
    left: list[range] = []
    taken = sorted(chosen)
    for place in places:
        start = place.start
        for at in (at for at in taken if at in place):
            if start < at:
                left.append(range(start, at))
            start = at + 1
        if start < place.stop:
            left.append(range(start, place.stop))
    return tuple(left)
