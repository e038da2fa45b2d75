"""One prompt's load under way in the worker: its parts, their states, the places to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rag_accel.kv.entry import KeyValues
from vllm_rag_accel.step_plan import PromptLoad, PromptLoadReport, PromptPart


@dataclass(slots=True)
class LoadState:
    """A load under way.

    Args:
        load: of the step.
        parts: those of it that are claimed.
        states: the kept states of parts, by key.
        placed: the keys of those that are in their blocks.
        encoded: the states of parts that were computed behind the head, by key.
        begin: the first token that is not there yet.
        head_rows: tokens of the head that were computed.
        gaps: places between parts.
        chosen: places of texts that are computed again.
    """

    load: PromptLoad
    parts: Sequence[PromptPart]
    states: dict[bytes, KeyValues]
    placed: set[bytes] = field(default_factory=set[bytes])
    encoded: dict[bytes, KeyValues] = field(default_factory=dict[bytes, KeyValues])
    begin: int = 0
    head_rows: int = 0
    gaps: list[range] = field(default_factory=list[range])
    chosen: list[int] = field(default_factory=list[int])

    @property
    def there(self) -> list[PromptPart]:
        return [part for part in self.parts if part.key in self.states or part.key in self.encoded]

    @property
    def missing(self) -> list[PromptPart]:
        """Return the texts without one."""
        head = self.load.layout.head
        return [part for part in self.parts if part.start >= head and part.key not in self.states]

    def is_head_kept(self) -> bool:
        """Tell whether the head's own state is kept."""
        head = self.load.layout.head
        return any(part.stop == head and part.key in self.states for part in self.parts)

    def note_gaps(self) -> None:
        """Tell the places between parts, once all states that can be had are there."""
        self.gaps = gaps_between(self.begin, self.load.end, self.there)

    def report(self, seconds: float) -> PromptLoadReport:
        """Return the origin of the claimed tokens, each of which has one."""
        chosen = set(self.chosen)
        counts = {True: 0, False: 0}
        for part in self.there:
            places = range(max(part.start, self.load.begin), part.stop)
            counts[part.key in self.encoded] += len(places) - len(chosen.intersection(places))
        return PromptLoadReport(
            self.load.request,
            reused=counts[False],
            encoded=counts[True],
            computed=self.head_rows + sum(map(len, self.gaps)),
            recomputed=len(chosen),
            seconds=seconds,
        )


def gaps_between(begin: int, end: int, parts: Sequence[PromptPart]) -> list[range]:
    gaps: list[range] = []
    at = begin
    for part in parts:
        if at < part.start:
            gaps.append(range(at, part.start))
        at = max(at, part.stop)
    if at < end:
        gaps.append(range(at, end))
    return gaps


def joined_places(gaps: Sequence[range], chosen: Sequence[int]) -> list[range]:
    places = sorted({*chosen, *(place for gap in gaps for place in gap)})
    joined: list[range] = []
    for place in places:
        if joined and joined[-1].stop == place:
            joined[-1] = range(joined[-1].start, place + 1)
        else:
            joined.append(range(place, place + 1))
    return joined
