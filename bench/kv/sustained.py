"""Streams of prompts of retrieved texts, and the tokens that stores of texts' state miss in them.

No model takes part: a store is asked for each prompt's texts and then given those it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from bench.baselines.prefix_chained import SizedText
from bench.results import Row
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.eviction import EvictionPolicy
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.store import ChunkStore

Shape = Literal["zipf", "uniform"]
#: One key and one value in float32.
TOKEN_BYTES = 8

Prompt = tuple[SizedText, ...]
Missed = Callable[[Prompt], int]
"""Asks a store for a prompt's texts, gives it what it missed, and returns the missed tokens."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts that are asked for again and again.

    Args:
        texts: by rank; of a Zipf stream the first is asked for most.
        tokens: the least and the most of a text, also of those that are asked for once.
    """

    texts: tuple[SizedText, ...]
    tokens: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the state of all texts."""
        return sum(one.tokens for one in self.texts) * TOKEN_BYTES


def corpus(count: int, tokens: tuple[int, int], seed: int = 0) -> Corpus:
    """Return texts of sizes between the least and the most tokens."""
    sizes = np.random.default_rng(seed).integers(tokens[0], tokens[1] + 1, count)
    return Corpus(tuple(SizedText(at, int(size)) for at, size in enumerate(sizes)), tokens)


def stream(
    known: Corpus, shape: Shape, prompts: int, texts: int, one_off: int, exponent: float, seed: int
) -> Iterator[Prompt]:
    """Yield prompts: different known texts and some that no other prompt has, in random order.

    Args:
        known: texts that are drawn, with weights ``1 / rank ** exponent`` or with equal ones.
        shape: which weights.
        prompts: how many.
        texts: of a prompt.
        one_off: of these, those that no other prompt has.
        exponent: of Zipf's weights.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    ranks = np.arange(1, len(known.texts) + 1)
    weights = ranks**-exponent if shape == "zipf" else np.ones(len(ranks))
    weights = weights / weights.sum()
    number = len(known.texts)
    for _ in range(prompts):
        drawn = random.choice(len(known.texts), texts - one_off, replace=False, p=weights)
        sizes = random.integers(known.tokens[0], known.tokens[1] + 1, one_off)
        once = [SizedText(number + at, int(size)) for at, size in enumerate(sizes)]
        number += one_off
        prompt = [*(known.texts[at] for at in drawn), *once]
        yield tuple(prompt[at] for at in random.permutation(texts))


class OurStore:
    """The engine's store in memory, asked and given as the engine does.

    Args:
        limit_bytes: of the store.
        eviction: what it gives up first; its default if none is given.
        admits_all: whether whatever is missed is kept, however seldom it was asked for.
    """

    def __init__(
        self, limit_bytes: int, eviction: EvictionPolicy | None = None, admits_all: bool = False
    ) -> None:
        self._store = ChunkStore(limit_bytes, eviction)
        self._source = ChunkSource("model", "", ())
        self._keep = self._store.keep if admits_all else self._store.put

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept."""
        return self._store.held_bytes

    def missed(self, texts: Prompt) -> int:
        """Look for a prompt's texts, put those that are missing, and return their tokens."""
        keys = {one: self._source.key((one.number,)) for one in texts}
        missing = [one for one, key in keys.items() if self._store.find(key) is None]
        for one in missing:
            self._keep(keys[one], _state(one.tokens))
        return sum(one.tokens for one in missing)


def _state(tokens: int) -> KeyValues:
    """Return keys and values of so many tokens, one number of each a token."""
    return KeyValues(torch.zeros(1, 1, tokens, 1), torch.zeros(1, 1, tokens, 1), 0)


@dataclass(frozen=True, slots=True)
class Counts:
    """What each store missed of one stream, prompt by prompt, in tokens.

    Args:
        workload: what the stream and the stores' bytes were.
        asked: the tokens of each prompt's texts.
        missed: of each store.
    """

    workload: str
    asked: Sequence[int]
    missed: Mapping[str, Sequence[int]]

    def ratio(self, name: str, other: str) -> float:
        """Return one store's missed tokens / another's."""
        return sum(self.missed[name]) / sum(self.missed[other])

    def rows(self) -> list[Row]:
        """Return the missed tokens of each store, and their share of all and of the last tenth."""
        count = len(self.asked)
        last = max(1, count // 10)
        rows: list[Row] = []
        for name, each in self.missed.items():
            share = sum(each) / sum(self.asked)
            share_last = sum(each[-last:]) / sum(self.asked[-last:])
            rows += [
                Row(name, self.workload, "missed_tokens", sum(each), None, count),
                Row(name, self.workload, "missed_share", share, None, count),
                Row(name, self.workload, "missed_share_of_last_tenth", share_last, None, last),
            ]
        return rows


def count(workload: str, prompts: Sequence[Prompt], stores: Mapping[str, Missed]) -> Counts:
    """Ask every store for every prompt's texts, in order."""
    asked = [sum(one.tokens for one in prompt) for prompt in prompts]
    missed = {name: [ask(prompt) for prompt in prompts] for name, ask in stores.items()}
    return Counts(workload, asked, missed)
