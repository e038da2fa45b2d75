"""State of the retrieved texts of prompts under way: encodings, and the tokens to recompute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.batching.sequence import TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
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
        if options.kv_reuse != "fused" or options.recompute_ratio == 0:
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


@dataclass(slots=True, eq=False)
class EncodedText:
    """A text that is encoded now. Equal only to itself.

    Args:
        key: of the text.
        name: the key that its state gets in the store.
        sequence: the head and some texts, this one among them.
        slots: its place in the sequence.
        label: the tenant, the text and those that it sees.
        readers: the prompts that wait for it.
    """

    key: bytes
    name: bytes
    sequence: TokenSequence
    slots: range
    label: ChunkLabel
    readers: dict[PromptChunks, None] = field(default_factory=dict["PromptChunks", None])


@dataclass(slots=True, eq=False)
class PromptChunks:
    """The retrieved texts of one prompt under way. Equal only to itself.

    Args:
        prompt: its segments.
        sequence: its tokens.
        chunks: its texts in their order, with their keys: those of their states behind the head.
        purges: the store's when the prompt began: what is purged later may be among its states.
        behind: the key of each text's state behind others, by its own; empty if none is used.
        digests: of its texts, as states and labels name those they have seen.
        states: of its texts, by key, as far as they are there.
        encoded: the texts that are still encoded, by key.
        looked_for: the texts that the store still looks for: their keys, by those looked under.
        unknown: keys of the texts that are nowhere.
        apart: keys of texts that have a state behind others, of which none is in this prompt.
        own: keys of the texts that are encoded for this prompt's sake.
        left_head: tokens of the head that earlier prompts had left when those were encoded.
    """

    prompt: SegmentedPrompt
    sequence: TokenSequence
    chunks: tuple[tuple[bytes, Segment], ...]
    purges: Purges
    behind: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    digests: frozenset[str] = frozenset()
    states: dict[bytes, LaneState] = field(default_factory=dict[bytes, LaneState])
    encoded: dict[bytes, EncodedText] = field(default_factory=dict[bytes, EncodedText])
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
        """Tell whether the states of all its texts are there."""
        return not (self.encoded or self.looked_for or self.unknown)

    @property
    def keys(self) -> frozenset[bytes]:
        """Return the keys of its texts in the store."""
        return frozenset(key for key, _ in self.chunks).union(self.behind.values())

    def may_use(self, name: bytes, seen: frozenset[str]) -> bool:
        """Tell whether a state helps here: one behind others has seen a text of the prompt.

        Args:
            name: its key in the store.
            seen: digests of the texts that it has seen.
        """
        return name in self.texts or not seen.isdisjoint(self.digests)

    @property
    def places(self) -> tuple[range, ...]:
        return tuple(range(segment.start, segment.end) for _, segment in self.chunks)

    def marked(self) -> tuple[int, ...]:
        """Return the prompt's tokens with marks of their states in place of its texts'."""
        marked = list(self.prompt.ids)
        for key, segment in self.chunks:
            digest = hashlib.sha256(key)
            digest.update(repr((sorted(self.states[key].seen), self.purges)).encode())
            mark = -1 - int.from_bytes(digest.digest())  # no token is negative
            marked[segment.start : segment.end] = [mark] * len(segment.ids)
        return tuple(marked)

    @property
    def num_preprocessed(self) -> int:
        """Return the tokens of texts whose state has seen others."""
        return sum(len(segment.ids) for key, segment in self.chunks if self.states[key].seen)

    def num_reused(self, chosen: Collection[int] = ()) -> int:
        """Return the tokens that were neither computed in the prompt nor encoded for it."""
        first: set[bytes] = set(self.own)
        reused = 0
        for key, segment in self.chunks:
            if key in first:
                first.discard(key)
            else:
                again = sum(segment.start <= at < segment.end for at in chosen)
                reused += len(segment.ids) - again
        return reused
