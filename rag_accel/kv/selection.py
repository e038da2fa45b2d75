"""Selectors of the tokens of reused texts to recompute (FusionRAG section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: The rows of a prompt whose attention to the tokens of its texts is measured.
Asked = Literal["last", "question"]


class TokenSelector(Protocol):
    """A choice of the tokens of a prompt's texts that are recomputed."""

    @property
    def asked(self) -> Asked:
        """Return the rows whose attention the choice needs: the last, or the question's."""
        ...

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places to recompute, at most ``count``, ascending.

        Args:
            scores: of each place of the prompt, the attention it got, meaned over heads and summed
                over the rows asked.
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
        block: tokens are chosen by blocks of so many neighbouring places, those with the greatest
            sum of scores; 1 for single tokens. Where the places allowed do not fill a block, single
            tokens are chosen.
    """

    asked: Asked = "last"
    block: int = 1

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places with the greatest scores; of equal ones the first."""
        block = self.block
        groups: dict[int, list[int]] = {}
        for at in (at for places in candidates for at in places):
            groups.setdefault(at // block, []).append(at)
        chosen: list[int] = []
        if block <= count:
            for group in sorted(
                groups.values(), key=lambda group: -sum(scores[at] for at in group)
            ):
                if len(chosen) + len(group) <= count:
                    chosen += group
            return sorted(chosen)
        places = [at for group in groups.values() for at in group]
        return sorted(sorted(places, key=lambda at: -scores[at])[:count])


def scored_layer(layers: int) -> int:
    """Return the layer whose attention is scored in a model of so many, if none is named."""
    return round((layers - 1) * 2 / 3)


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
