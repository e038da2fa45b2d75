"""Count the tokens of retrieved texts that stores miss over a long stream of prompts.

No model takes part and nothing is timed: the figures are the same wherever they are counted. There
are 400 texts of 128 to 512 tokens. A prompt has 10 texts, of which 9 are among the 400, drawn
without repetition by Zipf's law or each alike, and one that no other prompt ever has; their order
is random. Stores are empty at first, and have as many bytes as the state of the 400 texts, or a
share of these.

A missed token is a token of a text whose state the store did not have when the prompt asked for
it, whatever the cause: the text was never asked for before, it was not admitted, or it was given
up. The first sight of each text and the one-off texts are in every store's count; a store without a
limit misses these alone. Tokens that fused reuse computes again are not counted, nor are questions.

Ours is the engine's own store in memory. The look-up by content over entries with chained keys
(``bench.baselines.prefix_chained``) is that of LMCache's blending: it keeps each text once more
behind every other beginning. Rows without a ratio are its variant in which the entry kept longest
ago goes first, a prefix cache, and a prefix cache whose prompts are ordered for it, which are other
prompts (``bench.baselines.prefix_tree``).

Ratios:
    missed_zipf: against a look-up by content over prefix-chained keys of the same bytes: our
        missed tokens / its missed tokens, Zipf stream, bytes of all 400 texts.
    missed_uniform: against a look-up by content over prefix-chained keys of the same bytes: our
        missed tokens / its missed tokens, uniform stream, bytes of all 400 texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from bench.baselines.prefix_chained import PrefixChained
from bench.baselines.prefix_tree import PrefixTree, ReuseOrdered
from bench.kv.sustained import (
    TOKEN_BYTES,
    Corpus,
    Counts,
    OurStore,
    Prompt,
    Shape,
    corpus,
    count,
    stream,
)
from bench.results import Row, SuiteResult, sizes_of

OURS, OURS_ALL = "accelerated", "accelerated, everything admitted"
CHAINED = "prefix-chained, by content"
CHAINED_QUEUE = "prefix-chained, by content, oldest entry first"
PREFIX = "prefix cache"
ORDERED = "prefix cache, texts ordered for it"
UNBOUNDED = "no limit"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is counted.

    Args:
        texts: that are asked for again and again.
        tokens: the least and the most of a text.
        prompts: of a stream.
        texts_each: of a prompt.
        one_off: of these, those that no other prompt has.
        exponent: of Zipf's weights.
        shares: of the bytes of all texts that a store has; the ratios are of the first.
        seed: of all draws.
    """

    texts: int = 400
    tokens: tuple[int, int] = (128, 512)
    prompts: int = 1000
    texts_each: int = 10
    one_off: int = 1
    exponent: float = 1.0
    shares: tuple[float, ...] = (1.0, 0.5, 0.25)
    seed: int = 0


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Count; ``quick`` changes nothing: it takes seconds."""
    chosen = sizes or Sizes()
    known = corpus(chosen.texts, chosen.tokens, chosen.seed)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for shape in get_args(Shape):
        prompts = _prompts(chosen, known, shape)
        counts = [_counts(shape, known, prompts, share) for share in chosen.shares]
        ratios[f"missed_{shape}"] = counts[0].ratio(OURS, CHAINED)
        rows += [row for one in counts for row in one.rows()]
        rows += _rows_without_limit(shape, prompts)
    return SuiteResult("kv_sustained", tuple(rows), ratios, sizes=sizes_of(chosen))


def _prompts(sizes: Sizes, known: Corpus, shape: Shape) -> list[Prompt]:
    counts = (sizes.prompts, sizes.texts_each, sizes.one_off)
    return list(stream(known, shape, *counts, sizes.exponent, sizes.seed + 1))


def _counts(shape: Shape, known: Corpus, prompts: Sequence[Prompt], share: float) -> Counts:
    limit = int(known.size_bytes * share)
    stores = {
        OURS: OurStore(limit).missed,
        OURS_ALL: OurStore(limit, admits_all=True).missed,
        CHAINED: PrefixChained(limit, TOKEN_BYTES).missed,
        CHAINED_QUEUE: PrefixChained(limit, TOKEN_BYTES, touches=False).missed,
        PREFIX: PrefixTree(limit, TOKEN_BYTES).missed,
        ORDERED: ReuseOrdered(limit, TOKEN_BYTES).missed,
    }
    return count(f"{shape}, {share * 100:.0f} % of the bytes", prompts, stores)


def _rows_without_limit(shape: Shape, prompts: Sequence[Prompt]) -> list[Row]:
    """Return what is missed with bytes for everything, and how many bytes that takes."""
    every = sum(one.tokens for prompt in prompts for one in prompt) * TOKEN_BYTES
    ours, chained = OurStore(every), PrefixChained(None, TOKEN_BYTES)
    stores = {OURS: ours.missed, CHAINED: chained.missed}
    found = count(f"{shape}, {UNBOUNDED}", prompts, stores)
    held = {OURS: ours.held_bytes, CHAINED: chained.held_bytes}
    tokens = {name: size // TOKEN_BYTES for name, size in held.items()}
    return found.rows() + [
        Row(name, found.workload, "held_tokens", size, None, len(prompts))
        for name, size in tokens.items()
    ]
