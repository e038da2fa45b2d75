"""The retrieved parts of prompts under way: their states, encodings and recomputed tokens."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.batching.sequence import TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse.tree_units import PromptTree
from rag_accel.kv.entry import ChunkLabel, LaneState, Purges
from rag_accel.kv.segments import Segment, SegmentedPrompt
from rag_accel.kv.selection import TokenSelector


@dataclass(frozen=True, slots=True)
class Recompute:
    """The choice of the tokens of reused texts that are recomputed.

    Args:
        ratio: the share of all tokens of texts.
        layer: the layer whose attention is scored.
        selector: chooses them.
    """

    ratio: float
    layer: int
    selector: TokenSelector

    @classmethod
    def of(cls, options: LocalOptions, runner: Runner) -> Recompute | None:
        """Return the choice for a runner's model; None where nothing is recomputed."""
        if not options.recomputes or options.recompute_ratio == 0:
            return None
        layer = options.scored_layer(runner.layers)
        return cls(options.recompute_ratio, layer, options.selector)

    def choose(self, scores: Sequence[float], places: Sequence[range]) -> Sequence[int]:
        """Return the places to recompute, ascending.

        Args:
            scores: of each place of the prompt.
            places: of each text.
        """
        return self.selector.choose(scores, places, self.count(sum(map(len, places))))

    def count(self, tokens: int) -> int:
        return math.ceil(self.ratio * tokens)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedUnit:
    """A text, or a node of a tree, that is encoded now. Equal only to itself.

    Args:
        key: of the unit in prompts.
        name: the key that its state gets in the store.
        slots: its place in the sequence that encodes it.
        position: of its first token.
        label: the tenant, the text and those that it sees.
        encoding: of which it is a part.
        parent: of a node, the key of the one above it.
    """

    key: bytes
    name: bytes
    slots: range
    position: int
    label: ChunkLabel
    encoding: SpanEncoding
    parent: bytes | None = None


@dataclass(slots=True, eq=False)
class SpanEncoding:
    """A sequence that encodes units of a prompt behind its head. Equal only to itself.

    Args:
        sequence: its tokens.
        units: in their order.
        past: of a tree, the nodes above its units, which stand before them.
        owner: that tree; None where texts are encoded.
        readers: the prompts that wait for any of the units.
    """

    sequence: TokenSequence
    units: list[EncodedUnit] = field(default_factory=list[EncodedUnit])
    past: tuple[int, ...] = ()
    owner: PromptTree | None = None
    readers: dict[PromptSpans, None] = field(default_factory=dict["PromptSpans", None])


@dataclass(slots=True, eq=False)
class PromptSpans:
    """The retrieved texts and paths of one prompt under way. Equal only to itself.

    Args:
        prompt: its segments.
        sequence: its tokens.
        chunks: its texts in their order, with their keys: those of their states behind the head.
        purges: the store's when the prompt began: what is purged later may be among its states.
        tree: of its relation paths; None where there are none.
        behind: the key of each text's state behind others, by its own; empty if none is used.
        digests: of its texts, as states and labels name those they have seen.
        states: of its texts, by key, as far as they are there.
        encoded: the texts that are still encoded, by key.
        looked_for: the texts that the store still looks for: their keys, by those looked under.
        unknown: keys of the texts that are nowhere.
        apart: keys of texts that have a state behind others, of which none is in this prompt.
        own: keys of the texts and nodes that are encoded for this prompt's sake.
        left_head: tokens of the head that earlier prompts had left when those were encoded.
    """

    prompt: SegmentedPrompt
    sequence: TokenSequence
    chunks: tuple[tuple[bytes, Segment], ...]
    purges: Purges
    tree: PromptTree | None = None
    behind: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    digests: frozenset[str] = frozenset()
    states: dict[bytes, LaneState] = field(default_factory=dict[bytes, LaneState])
    encoded: dict[bytes, EncodedUnit] = field(default_factory=dict[bytes, EncodedUnit])
    looked_for: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    unknown: dict[bytes, None] = field(default_factory=dict[bytes, None])
    apart: set[bytes] = field(default_factory=set[bytes])
    own: set[bytes] = field(default_factory=set[bytes])
    left_head: float = math.inf
    #: its texts by key, of equal ones the first
    texts: dict[bytes, Segment] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = {}
        for key, segment in self.chunks:
            self.texts.setdefault(key, segment)

    @property
    def is_ready(self) -> bool:
        """Tell whether the states of all its parts are there, or computed with the rest of it."""
        if self.encoded or self.looked_for or self.unknown:
            return False
        return self.tree is None or self.tree.is_inline or not self.tree.missing

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the keys of its texts and nodes in the store."""
        nodes = () if self.tree is None else self.tree.keys
        return (*self.texts, *self.behind.values(), *nodes)

    def may_use(self, name: bytes, seen: frozenset[str]) -> bool:
        """Tell whether a state helps here: one behind others has seen a text of the prompt.

        Args:
            name: its key in the store.
            seen: digests of the texts that it has seen.
        """
        return name in self.texts or not seen.isdisjoint(self.digests)

    def take(self, unit: EncodedUnit, state: LaneState) -> None:
        """Take the state of a unit that was encoded, if the prompt waits for it."""
        if self.encoded.get(unit.key) is unit:
            del self.encoded[unit.key]
            self.states[unit.key] = state
        elif self.tree is not None:
            self.tree.take(unit.key, state)

    @property
    def places(self) -> tuple[range, ...]:
        """Return the place of each text."""
        return tuple(range(segment.start, segment.end) for _, segment in self.chunks)

    def skipped(self, places: Sequence[range]) -> tuple[range, ...]:
        """Return the places that are not computed, in their order.

        Args:
            places: of the texts.
        """
        if self.tree is None or self.tree.is_inline:
            return tuple(places)
        return tuple(sorted((*places, self.prompt.slots), key=lambda place: place.start))

    def marked(self) -> tuple[int, ...]:
        """Return the prompt's tokens, those of its texts and tree with marks of their states."""
        marked = list(self.prompt.ids)
        for key, segment in self.chunks:
            digest = hashlib.sha256(key)
            digest.update(repr((sorted(self.states[key].seen), self.purges)).encode())
            mark = -1 - int.from_bytes(digest.digest())  # no token is negative
            marked[segment.start : segment.end] = [mark] * len(segment.ids)
        if self.tree is not None:
            slots = self.prompt.slots
            marked[slots.start : slots.stop] = [self.tree.mark(self.purges)] * len(slots)
        return tuple(marked)

    @property
    def num_preprocessed(self) -> int:
        """Return the tokens of texts whose state has seen others."""
        return sum(len(segment.ids) for key, segment in self.chunks if self.states[key].seen)

    def num_reused(self, chosen: Collection[int] = ()) -> int:
        """Return the tokens of texts that were neither computed here nor encoded for it."""
        first: set[bytes] = set(self.own)
        reused = 0
        for key, segment in self.chunks:
            if key in first:
                first.discard(key)
            else:
                again = sum(segment.start <= at < segment.end for at in chosen)
                reused += len(segment.ids) - again
        return reused
