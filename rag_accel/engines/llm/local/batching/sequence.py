"""One sequence of tokens, with its pending tokens and its lane in the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from rag_accel.engines.llm.local.batching.rows import (
    CAUSAL,
    Causal,
    Probe,
    SequenceRows,
    Subtrees,
)


@dataclass(slots=True, eq=False)
class Lane:
    """A place in the pool that a sequence writes to, or that an ended one has left filled.

    Args:
        number: the pool's name of it.
        namespace: tenant; no other one's sequences are begun with what it holds.
        ids: the tokens whose keys and values it holds, in slots from 0.
        pins: handles whose prompt it holds; such lanes are given up last.
        in_use: whether a sequence still writes to it.
    """

    number: int
    namespace: str
    ids: tuple[int, ...] = ()
    pins: int = 0
    in_use: bool = True


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A tree of tokens in a sequence, in pre-order (DepCache section 3.1).

    Args:
        slots: its places in the sequence.
        positions: of each of its tokens.
        ends: of each, the place behind the last one that depends on it.
        behind: the position of the first token behind the tree.
    """

    slots: range
    positions: Sequence[int]
    ends: Sequence[int]
    behind: int

    def position(self, at: int) -> int:
        """Return the position of the token at a place of the sequence."""
        if at < self.slots.start:
            return at
        if at < self.slots.stop:
            return self.positions[at - self.slots.start]
        return self.behind + at - self.slots.stop

    def reach(self, computed: int, most: int) -> int:
        """Return the number of next places, about ``most``, that do not cut the tree.

        Its rows are computed together, since a piece of them would be seen by all of the next.
        """
        start, stop = self.slots.start, self.slots.stop
        if computed >= stop or not start < computed + most < stop:
            return most
        return stop - computed if computed == start else start - computed

    def visible(self, slots: range) -> Subtrees | Causal:
        """Return what rows of neighbouring places see."""
        if slots.stop <= self.slots.start or slots.start >= self.slots.stop:
            return CAUSAL
        start, stop = self.slots.start, self.slots.stop
        ends = [
            *[slots.stop] * (start - slots.start),
            *self.ends[: slots.stop - start],
            *[slots.stop] * (slots.stop - stop),
        ]
        return Subtrees(ends, stop if slots.stop > stop else None)


@dataclass(slots=True)
class Probing:
    """The attention of a prompt's rows in one layer, collected over its forwards.

    Args:
        layer: the layer.
        start: the first place whose row is probed.
    """

    layer: int
    start: int
    probes: list[Probe] = field(default_factory=list[Probe])

    def rows(self, rows: SequenceRows) -> SequenceRows:
        """Return the same rows, with a probe of those from ``start`` on."""
        probed = [at for at, slot in enumerate(rows.slots) if slot >= self.start]
        if not probed:
            return rows
        self.probes.append(Probe(self.layer, probed))
        return replace(rows, probe=self.probes[-1])

    def scores(self, size: int) -> list[float]:
        """Return the scores of all places of a prompt of ``size`` tokens."""
        total = [0.0] * size
        for probe in self.probes:
            for at, score in enumerate(probe.scores.tolist() if probe.scores is not None else ()):
                total[at] += score
        return total


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One prompt and the tokens generated after it. Equal only to itself.

    Args:
        prompt: token ids, at least one.
        max_new: most tokens to generate; 0 where only the prompt is to be computed.
        request: the request it belongs to.
        namespace: tenant.
        arrived_at: when the request arrived, in seconds.
        depth: longest remaining path to the request's end, in primitives.
        exact: how many first tokens have the state that computing all before them gives; None for
            all. No other sequence takes over more.
        from_chunks: tokens whose state texts and paths have that were encoded for other prompts.
        from_tree: of those, the tokens of paths.
        recomputed: tokens of texts that are computed again.
        preprocessed: tokens of texts that were encoded behind similar ones.
        early: places of the prompt that were computed before, but for this very call: they do not
            count as taken over, wherever their state comes from.
        skipped: places of the prompt that are not computed, ranges in order, whose state is
            put into the lane when it is taken; the last token is never among them.
        probing: the collected attention, while the prompt is computed to learn it.
        tree: the tree that stands in the prompt.
        marked: the prompt with marks in place of the tokens of its texts and its tree: only behind
            equal ones have equal tokens the same state. None where there are none.
    """

    prompt: tuple[int, ...]
    max_new: int
    request: str = ""
    namespace: str = ""
    arrived_at: float = 0.0
    depth: int = 1
    generated: list[int] = field(default_factory=list[int])
    lane: Lane | None = None
    from_prefix: int = 0
    computed: int = 0
    exact: int | None = None
    from_chunks: int = 0
    from_tree: int = 0
    recomputed: int = 0
    preprocessed: int = 0
    early: range = range(0)
    skipped: tuple[range, ...] = ()
    probing: Probing | None = None
    tree: TreePlace | None = None
    marked: tuple[int, ...] | None = None

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Return the prompt as prefixes of prompts are compared."""
        return self.prompt if self.marked is None else self.marked

    @property
    def capacity(self) -> int:
        """Return the most tokens its lane will have to hold."""
        return len(self.prompt) + self.max_new

    @property
    def pending(self) -> int:
        """Return the number of known tokens that are not computed."""
        left = len(self.prompt) + len(self.generated) - self.computed
        return left - sum(len(places) for places in self.skipped if places.start >= self.computed)

    @property
    def is_decoding(self) -> bool:
        """Tell whether its prompt is computed and a token was chosen after it."""
        return bool(self.generated)

    @property
    def computed_ids(self) -> tuple[int, ...]:
        """Return what its lane holds, as prefixes are compared, as far as others may take it."""
        most = self.computed if self.exact is None else min(self.computed, self.exact)
        return (*self.prefix_ids, *self.generated)[:most]

    def begin(self, lane: Lane, from_prefix: int) -> None:
        """Take a lane that holds the first ``from_prefix`` tokens of the prompt already."""
        self.lane = lane
        self.from_prefix = from_prefix - len(self.early[: max(0, from_prefix - self.early.start)])
        self.go_on(from_prefix)

    def go_on(self, computed: int) -> None:
        """Note that the lane holds all tokens before a place, and those skipped from there on."""
        for places in self.skipped:
            if places.start == computed:
                computed = places.stop
        self.computed = computed

    def rows(self, most: int) -> SequenceRows:
        """Return the next rows, at most so many; the last known token's logits are asked for."""
        assert self.lane is not None
        if self.tree is not None and self.tree.slots not in self.skipped:
            most = self.tree.reach(self.computed, most)
            most = min([most, *self._gaps()])
        slots = self._next_slots(min(most, self.pending))
        size = len(self.prompt)
        ids = tuple(self.prompt[at] if at < size else self.generated[at - size] for at in slots)
        is_last = slots[-1] + 1 == size + len(self.generated)
        tree = self.tree
        positions = slots if tree is None else [tree.position(at) for at in slots]
        if self.probing is not None:
            return self.probing.rows(SequenceRows(self.lane.number, ids, slots, positions))
        asked = (len(slots) - 1,) if is_last and self.max_new else ()
        rows = SequenceRows(self.lane.number, ids, slots, positions, asked)
        if tree is None or tree.slots in self.skipped:
            return rows
        neighbours = range(slots[0], slots[-1] + 1)
        return replace(rows, slots=neighbours, visible=tree.visible(neighbours))

    def _gaps(self) -> Iterator[int]:
        """Yield how far away skipped places are: what rows of a tree see is told of neighbours."""
        return (at.start - self.computed for at in self.skipped if at.start > self.computed)

    def _next_slots(self, count: int) -> Sequence[int]:
        slots: list[int] = []
        at = self.computed
        ends = [*(places for places in self.skipped if places.start >= at), None]
        for end in ends:
            behind = at + count - len(slots)
            stop = behind if end is None else min(behind, end.start)
            slots += range(at, stop)
            if len(slots) == count or end is None:
                break
            at = end.stop
        return slots
