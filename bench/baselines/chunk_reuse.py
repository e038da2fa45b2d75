"""Ways to compute a prompt of retrieved texts, by their definitions, over packed rows of a model.

- full prefill: every token is computed behind all before it;
- prefix cache: what an earlier prompt has in common with its beginning is taken over, nothing else;
- full reuse: each text has the state it has behind the head, moved to its place; head, glue and
  question are computed;
- partial recompute: of the texts' tokens, chosen ones are computed again as well: the first of each
  text (EPIC), those whose keys and values of the second layer differ most from those that full
  attention gives (CacheBlend), or random ones.

They are written apart from the engine, which they check. Each returns the logits of a prompt's last
rows: a tensor ``[last, vocabulary]``, float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

import torch

from rag_accel.engines.llm.local.batching.rows import LanePool, SequenceRows
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.errors import ConfigError
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.segments import SegmentedPrompt

States = Mapping[tuple[int, ...], KeyValues]
"""The state of each text of a prompt by its tokens."""

#: CacheBlend looks at the second layer: the first one's keys and values are those of the token.
DEVIATION_LAYER = 1

# Prefills ---------------------------------------------------------------------------------------


def full_prefill(runner: PackedRunner, ids: Sequence[int], last: int = 1) -> torch.Tensor:
    """Compute every token of a prompt."""
    with _lane(runner.pool, len(ids)) as lane:
        return _computed(runner, lane, ids, range(len(ids)), last)


class PrefixOnly:
    """Prompts of which each takes over what it has in common with the beginning of the one before.

    Args:
        runner: its pool is used by nothing else meanwhile.
    """

    def __init__(self, runner: PackedRunner) -> None:
        self._runner = runner
        self._kept: tuple[int, tuple[int, ...]] | None = None
        #: tokens of the latest prompt that were not computed
        self.taken_over = 0

    def prefill(self, ids: Sequence[int], last: int = 1) -> torch.Tensor:
        """Compute a prompt but for its common beginning; the last rows are always computed."""
        pool = self._runner.pool
        lane = _taken(pool, len(ids))
        self.taken_over = 0
        if self._kept is not None:
            before, held = self._kept
            self.taken_over = min(_common(held, ids), len(ids) - last)
            pool.copy(before, lane, self.taken_over)
            pool.free(before)
        self._kept = lane, tuple(ids)
        return _computed(self._runner, lane, ids, range(self.taken_over, len(ids)), last)

    def close(self) -> None:
        """Give the kept prompt back."""
        if self._kept is not None:
            self._runner.pool.free(self._kept[0])
        self._kept = None


def encoded(runner: PackedRunner, prompt: SegmentedPrompt) -> dict[tuple[int, ...], KeyValues]:
    """Return the state that each text of a prompt has behind its head, and nothing else."""
    head = prompt.head
    states: dict[tuple[int, ...], KeyValues] = {}
    for chunk in prompt.chunks:
        ids = (*head, *chunk.ids)
        with _lane(runner.pool, len(ids)) as lane:
            _computed(runner, lane, ids, range(len(ids)), 1)
            states[chunk.ids] = runner.pool.read(lane, range(len(head), len(ids)))
    return states


def reuse(
    runner: PackedRunner,
    prompt: SegmentedPrompt,
    states: States,
    answer: Sequence[int] = (),
    again: Sequence[int] = (),
) -> torch.Tensor:
    """Compute what is no text, and the texts' tokens at the places ``again``.

    Args:
        runner: computes.
        prompt: its texts are all in ``states``.
        states: of texts behind the prompt's head.
        answer: tokens behind the prompt; the logits returned are those of the prompt's last token
            and of each of these.
        again: places of the prompt; none for full reuse.
    """
    ids = (*prompt.ids, *answer)
    texts = {place for one in prompt.chunks for place in range(one.start, one.end)}
    places = sorted({*range(len(ids))} - texts | {*again})
    with _lane(runner.pool, len(ids)) as lane:
        _load(runner.pool, lane, prompt, states)
        return _computed(runner, lane, ids, places, len(answer) + 1)


# Which of the texts' tokens are computed again --------------------------------------------------


def first_tokens(prompt: SegmentedPrompt, count: int) -> list[int]:
    """Return the places of the first tokens of each text."""
    return [
        place
        for one in prompt.chunks
        for place in range(one.start, min(one.end, one.start + count))
    ]


def random_tokens(prompt: SegmentedPrompt, share: float, seed: int) -> list[int]:
    """Return random places of texts, a share of all."""
    places = _places(prompt)
    return sorted(Random(seed).sample(places, round(share * len(places))))


def most_deviant(
    runner: PackedRunner, prompt: SegmentedPrompt, states: States, share: float
) -> list[int]:
    """Return the places of texts whose keys and values of the second layer deviate most.

    What full attention gives is computed here to its end, which costs what reuse would save: for
    the choice it makes, not for its time.
    """
    size, places = len(prompt.ids), torch.tensor(_places(prompt))
    with _lane(runner.pool, size) as lane, _lane(runner.pool, size) as other:
        _computed(runner, lane, prompt.ids, range(size), 1)
        _load(runner.pool, other, prompt, states)
        end = prompt.chunks[-1].end
        whole, moved = (runner.pool.read(one, range(end)) for one in (lane, other))
    deviation = torch.zeros(end)
    for ours, theirs in ((whole.keys, moved.keys), (whole.values, moved.values)):
        apart = ours[DEVIATION_LAYER].float() - theirs[DEVIATION_LAYER].float()
        deviation += apart.square().sum((0, 2)).cpu()
    best = deviation[places].topk(round(share * len(places))).indices
    return sorted(places[best].tolist())


def _places(prompt: SegmentedPrompt) -> list[int]:
    return [place for one in prompt.chunks for place in range(one.start, one.end)]


# Rows and lanes ---------------------------------------------------------------------------------


def _computed(
    runner: PackedRunner, lane: int, ids: Sequence[int], places: Sequence[int], last: int
) -> torch.Tensor:
    asked = range(len(places) - last, len(places))
    taken = [ids[place] for place in places]
    return runner.run([SequenceRows(lane, taken, places, places, asked)])


def _load(pool: LanePool, lane: int, prompt: SegmentedPrompt, states: States) -> None:
    for one in prompt.chunks:
        pool.write(lane, one.start, states[one.ids])


@contextmanager
def _lane(pool: LanePool, tokens: int) -> Iterator[int]:
    lane = _taken(pool, tokens)
    try:
        yield lane
    finally:
        pool.free(lane)


def _taken(pool: LanePool, tokens: int) -> int:
    lane = pool.take(tokens)
    if lane is None:
        raise ConfigError("the pool has no room", where="baseline", found=f"{tokens} tokens")
    return lane


def _common(held: Sequence[int], ids: Sequence[int]) -> int:
    for at, (one, other) in enumerate(zip(held, ids, strict=False)):
        if one != other:
            return at
    return min(len(held), len(ids))
