"""The schedule of the next forward: tokens being decoded, and pieces of prompts in their order.

No tensor and no clock: the schedule decides on numbers alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.batching.sequence import TokenSequence

Admit = Callable[[TokenSequence], bool]
"""Gives a sequence its lane and returns True, or returns False while there is no room."""

LEAST_CHUNK = 128
"""Prompt tokens computed in a forward even where decoding alone fills the budget.

In smaller pieces, reading the weights makes each token of a prompt much dearer: all who wait for a
first token wait longer than the shorter forwards save those who decode.
"""

JUST_BEGUN = 8
"""Tokens of a completion up to which no prompt is cut for it.

Prompts that come together end one after the other: cut for the first one's first tokens, all of the
others would begin later.
"""

WORTH_WAITING = 16
"""Tokens in common with a prompt under way from which a prompt waits to take them over."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows of one sequence in the next forward."""

    sequence: TokenSequence
    rows: SequenceRows


class Schedule:
    """The sequences of an engine, and the choice of those that the next forward advances.

    Every sequence that decodes advances by one token in each forward. What is left of the budget
    goes to prompts: those of earlier requests first, and within one request those with the longest
    way to its end. A sequence gets its lane when its first tokens are to be computed, for all
    tokens it may ever hold, so that none is ever preempted; where there is no room for it, later
    ones do not overtake it.

    Args:
        admit: gives a sequence its lane.
    """

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._order: dict[TokenSequence, tuple[float, int, int, int]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[TokenSequence]:
        return iter(sorted(self._order, key=self._order.__getitem__))

    @property
    def decodes(self) -> bool:
        """Tell whether a completion is under way that has not only just begun."""
        return any(len(sequence.generated) > JUST_BEGUN for sequence in self._order)

    @property
    def is_alone(self) -> bool:
        """Tell whether there is one sequence, and none that waits for it."""
        return len(self._order) == 1

    def add(self, sequence: TokenSequence) -> None:
        """Take a sequence that has no lane yet."""
        number = next(self._numbers)
        # Requests that arrived at the same moment go by which of them came here first.
        group = min(
            (key[1] for other, key in self._order.items() if other.request == sequence.request),
            default=number,
        )
        self._order[sequence] = (sequence.arrived_at, group, -sequence.depth, number)

    def drop(self, sequence: TokenSequence) -> None:
        """Forget a sequence; an unknown one is ignored."""
        self._order.pop(sequence, None)

    def next(self, budget: int) -> list[Planned]:
        """Return the rows of the next forward: about ``budget``, more where more decode.

        Empty only if nothing is held, or if nothing that is held gets a lane.
        """
        ordered = list(self)
        plan = [Planned(running, running.rows(1)) for running in ordered if running.is_decoding]
        left = max(budget - len(plan), min(budget, LEAST_CHUNK))
        prompts: list[Planned] = []
        has_room = True
        for sequence in ordered:
            if left < 1:
                break
            if sequence.is_decoding:
                continue
            if sequence.lane is None:
                if not has_room or _gains_by_waiting(sequence, prompts):
                    continue
                has_room = self._admit(sequence)
                if not has_room:
                    continue
            rows = sequence.rows(left)
            left -= len(rows)
            prompts.append(Planned(sequence, rows))
        return plan + prompts


def common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of the common prefix of two sequences."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(at for at in range(most) if one[at] != other[at])


def _gains_by_waiting(sequence: TokenSequence, prompts: Iterable[Planned]) -> bool:
    """Tell whether this very forward computes much that the sequence could take over after it."""
    return any(
        other.namespace == sequence.namespace
        and _common(other, sequence) - other.computed >= WORTH_WAITING
        for other in (planned.sequence for planned in prompts)
    )


def _common(one: TokenSequence, other: TokenSequence) -> int:
    """Return the length of the common prefix of two prompts that can be taken over."""
    exact = [most for most in (one.exact, other.exact) if most is not None]
    return min(common_length(one.prefix_ids, other.prefix_ids), *exact, len(one.prompt))
