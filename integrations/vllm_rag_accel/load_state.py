"""One prompt's load under way in the worker: its parts, their states, the rows to compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch

from rag_accel.kv.entry import KeyValues, Purges
from rag_accel.kv.neighbours import MOST_BEFORE, MOST_TOGETHER
from rag_accel.kv.rotation import moved_together
from vllm_rag_accel.step_plan import PromptLoad, PromptLoadReport, PromptPart


@dataclass(frozen=True, slots=True, eq=False)
class ComputedText:
    """A text whose state is computed in this step. Equal only to itself.

    Args:
        part: of the prompt that it is computed for.
        name: the key that its state gets in the store.
        seen: digests of the texts between the head and it, and of all that these have seen.
    """

    part: PromptPart
    name: bytes
    seen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Encoding:
    """Texts that are computed in one sequence, behind a head and each other.

    Args:
        texts: in their order.
        start: the position of the first.
        before: the state of texts between the head and them, moved there; None without any.
    """

    texts: tuple[ComputedText, ...]
    start: int
    before: KeyValues | None = None


@dataclass(slots=True)
class LoadState:
    """A load under way.

    Args:
        load: of the step.
        parts: those of it that are claimed.
        purges: the store's when the load began.
        digests: of the prompt's texts, by key, as states say which texts they have seen.
        states: the kept states of parts, by key.
        apart: keys of texts that have a state behind others, of which none is in this prompt.
        placed: the keys of those that are in their blocks.
        encodings: the computations of texts for this prompt.
        texts: those whose states it gets when they are computed, by key.
        encoded: the states of parts that were computed in this step, by key.
        begin: the first token that is not there yet.
        head_rows: tokens of the head that were computed.
        gaps: places between parts.
        chosen: places of texts that are computed again.
    """

    load: PromptLoad
    parts: Sequence[PromptPart]
    purges: Purges | None = None
    digests: dict[bytes, frozenset[str]] = field(default_factory=dict[bytes, frozenset[str]])
    states: dict[bytes, KeyValues] = field(default_factory=dict[bytes, KeyValues])
    apart: set[bytes] = field(default_factory=set[bytes])
    placed: set[bytes] = field(default_factory=set[bytes])
    encodings: list[Encoding] = field(default_factory=list[Encoding])
    texts: dict[bytes, ComputedText] = field(default_factory=dict[bytes, ComputedText])
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

    @property
    def seen(self) -> dict[bytes, frozenset[str]]:
        """Return the digests of the texts that each text's state has seen, by key."""
        states = {**self.states, **self.encoded}
        return {key: state.seen for key, state in states.items() if key in self.digests}

    def may_use(self, key: bytes, seen: frozenset[str]) -> bool:
        """Tell whether a text's state behind others has seen another text of the prompt."""
        others = seen - self.digests[key]
        return not others.isdisjoint(chain.from_iterable(self.digests.values()))

    def plan(
        self,
        block: int,
        shared: MutableMapping[bytes, ComputedText],
        frequencies: torch.Tensor,
    ) -> None:
        """Plan the computation of the texts without a state.

        Args:
            block: tokens of a block.
            shared: by name, texts that are computed in this step and whose states other prompts may
                take; the prompt's own are added.
            frequencies: of the model's rotation.
        """
        together: dict[bytes, PromptPart] = {}
        alone: dict[bytes, PromptPart] = {}
        self.texts.clear()
        for part in self.missing:
            if (text := self._usable(part, shared)) is not None:
                self.texts[part.key] = text
            elif not part.behind or part.key in self.apart or part.behind in shared:
                alone.setdefault(part.key, part)
            else:
                together.setdefault(part.key, part)
        head = self.load.layout.head
        free = len(self.load.free_blocks(block)) * block - head % block
        chains = list(_chains(together.values(), free))
        self.encodings = [self._behind(chain, free, frequencies) for chain in chains]
        texts = [ComputedText(part, part.key) for part in alone.values()]
        self.encodings += [Encoding((text,), head) for text in texts]
        for text in (text for encoding in self.encodings for text in encoding.texts):
            self.texts[text.part.key] = text
            if self.load.layout.save:  # else it may be approximate even behind the head
                shared[text.name] = text

    def _usable(
        self, part: PromptPart, shared: MutableMapping[bytes, ComputedText]
    ) -> ComputedText | None:
        for name in (part.behind, part.key):
            text = shared.get(name)
            if text is not None and (not text.seen or self.may_use(part.key, text.seen)):
                return text
        return None

    def _behind(
        self, texts: Sequence[PromptPart], room: int, frequencies: torch.Tensor
    ) -> Encoding:
        """Return the encoding of texts behind each other, and behind kept ones before them."""
        before: dict[bytes, KeyValues] = {}
        seen: frozenset[str] = frozenset()
        room -= sum(len(part.ids) for part in texts)
        for part in reversed(self.parts):
            state = self.states.get(part.key)
            if state is None or not self.load.layout.head <= part.start < texts[0].start:
                continue
            more = seen | state.seen | self.digests[part.key]
            if len(before) < MOST_BEFORE and len(more) <= MOST_TOGETHER and len(state) <= room:
                before[part.key], seen = state, more
                room -= len(state)
        moved: KeyValues | None = None
        head, states = self.load.layout.head, list(reversed(before.values()))
        *positions, start = accumulate(map(len, states), initial=head)
        if states:
            moved = KeyValues(*moved_together(states, positions, frequencies), head)
        encoded: list[ComputedText] = []
        for part in texts:
            encoded.append(ComputedText(part, part.behind if seen else part.key, seen))
            seen |= self.digests[part.key]
        return Encoding(tuple(encoded), start, moved)

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


def _chains(texts: Iterable[PromptPart], room: int) -> Iterator[list[PromptPart]]:
    """Cut texts into those that are computed in one sequence, as far as the blocks hold them."""
    chain: list[PromptPart] = []
    left = room
    for part in texts:
        if chain and (len(chain) == MOST_TOGETHER or len(part.ids) > left):
            yield chain
            chain, left = [], room
        chain.append(part)
        left -= len(part.ids)
    if chain:
        yield chain


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
