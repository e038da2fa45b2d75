"""Ways to compute a prompt of retrieved texts, by their definitions, over packed rows of a model.

- full attention: every token is computed behind all before it;
- full reuse: each text has the state it has behind the head, moved to its place; head, glue and
  question are computed; its state may be that behind other texts, too (FusionRAG section 3.1);
- partial recompute: of the texts' tokens, chosen ones are computed again as well: those that get
  most of the question's attention over the reused texts (FusionRAG, in the last layer; ProphetKV,
  meaned over all layers; the engine, in that at two thirds of the depth), the first ones of every
  text but the first (EPIC), or those whose keys and values of the second layer differ most from
  those that full attention gives (CacheBlend).

They are written apart from the engine, which they check. Logits are those of a prompt's last rows:
a tensor ``[last, vocabulary]``, float32.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import LanePool, Probe, SequenceRows
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.errors import ConfigError
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import Asked, TokenSelector

Ids = tuple[int, ...]
States = Mapping[Ids, KeyValues]
"""The state of each text of a prompt by its tokens."""

#: Short texts are encoded together, so many tokens in a forward.
_TOGETHER = 512

#: CacheBlend looks at the second layer: the first one's keys and values are those of the token.
DEVIATION_LAYER = 1

# Answers and states -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FullAnswer:
    """The greedy answer of full attention.

    Args:
        tokens: of the answer, with the one that ends it.
        logits: of each of them: ``[token, vocabulary]``.
        state: of the prompt.
    """

    tokens: Ids
    logits: torch.Tensor
    state: KeyValues


def answered(
    runner: PackedRunner, ids: Sequence[int], most: int, ends: Collection[int] = ()
) -> FullAnswer:
    """Answer a prompt by full attention, in at most so many tokens."""
    with lane_of(runner.pool, len(ids) + most) as lane:
        logits = [computed(runner, lane, ids, range(len(ids)))]
        tokens = [int(logits[-1].argmax())]
        while len(tokens) < most and tokens[-1] not in ends:
            at = len(ids) + len(tokens) - 1
            logits.append(computed(runner, lane, (*ids, *tokens), range(at, at + 1)))
            tokens.append(int(logits[-1].argmax()))
        state = runner.pool.read(lane, range(len(ids)))
    return FullAnswer(tuple(tokens), torch.cat(logits), state)


def encoded(runner: PackedRunner, prompt: SegmentedPrompt) -> dict[Ids, KeyValues]:
    """Return the state that each text of a prompt has behind its head, and nothing else."""
    return _alone(runner, prompt.head, (chunk.ids for chunk in prompt.chunks))


def head_state(runner: PackedRunner, head: Ids) -> KeyValues:
    """Return the state of a head, which stands first."""
    with lane_of(runner.pool, len(head)) as lane:
        computed(runner, lane, head, range(len(head)))
        return runner.pool.read(lane, range(len(head)))


def _alone(runner: PackedRunner, head: Ids, texts: Iterable[Ids]) -> dict[Ids, KeyValues]:
    pool, states = runner.pool, dict[Ids, KeyValues]()
    first = head_state(runner, head)
    waiting = list(dict.fromkeys(texts))
    while waiting:
        number = max(1, _TOGETHER // max(map(len, waiting)))
        group, waiting = waiting[:number], waiting[number:]
        with ExitStack() as held:
            rows: list[SequenceRows] = []
            for ids in group:
                places = range(len(head), len(head) + len(ids))
                lane = held.enter_context(lane_of(pool, places.stop))
                pool.write(lane, 0, first)
                rows.append(SequenceRows(lane, ids, places, places, range(len(ids) - 1, len(ids))))
            runner.run(rows)
            for ids, row in zip(group, rows, strict=True):
                states[ids] = pool.read(row.lane, range(row.slots[0], row.slots[-1] + 1))
    return states


class KeptStates:
    """The states of texts behind one head, as prompts leave them that are asked one by one.

    New texts of a prompt are encoded behind each other, and behind the last three kept ones that
    stand before them. A prompt takes such a state if it holds a text that this has seen; for other
    prompts the text is encoded behind the head alone. Texts are few: none sees more than half of
    what a state may have seen.

    Args:
        runner: computes.
        head: of all prompts.
    """

    def __init__(self, runner: PackedRunner, head: Ids) -> None:
        self._runner, self._head = runner, head
        self._alone: dict[Ids, KeyValues] = {}
        self._behind: dict[Ids, tuple[KeyValues, frozenset[Ids]]] = {}

    def of(self, texts: Sequence[Ids]) -> dict[Ids, KeyValues]:
        """Return the states that a prompt with these texts takes; it leaves those that are new."""
        found: dict[Ids, KeyValues] = {}
        new: list[Ids] = []
        for ids in dict.fromkeys(texts):
            state, seen = self._behind.get(ids, (None, frozenset[Ids]()))
            if state is not None and not seen.isdisjoint(texts):
                found[ids] = state
            elif state is None and ids not in self._alone:
                new.append(ids)
            else:
                if ids not in self._alone:
                    self._alone |= _alone(self._runner, self._head, [ids])
                found[ids] = self._alone[ids]
        if new:
            first = texts.index(new[0])
            self._encode([ids for ids in found if texts.index(ids) < first][-3:], found, new)
            for ids in new:
                found[ids] = self._alone[ids] if ids in self._alone else self._behind[ids][0]
        return found

    def _encode(self, before: Sequence[Ids], states: States, new: Sequence[Ids]) -> None:
        """Encode texts behind each other, and behind the states of others."""
        pool, at = self._runner.pool, len(self._head)
        seen = frozenset(before)
        seen = seen.union(*(self._seen(ids, states[ids]) for ids in before))
        ids = (*self._head, *chain(*before, *new))
        with lane_of(pool, len(ids)) as lane:
            computed(self._runner, lane, ids, range(at))
            for text in before:
                pool.write(lane, at, states[text])
                at += len(text)
            computed(self._runner, lane, ids, range(at, len(ids)))
            for text in new:
                state = pool.read(lane, range(at, at + len(text)))
                if seen:
                    self._behind[text] = state, seen
                else:
                    self._alone[text] = state
                seen |= {text}
                at += len(text)

    def _seen(self, text: Ids, state: KeyValues) -> frozenset[Ids]:
        kept, seen = self._behind.get(text, (None, frozenset[Ids]()))
        return seen if kept is state else frozenset()


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
    places = sorted({*range(len(ids))} - {*places_of(prompt)} | {*again})
    with lane_of(runner.pool, len(ids)) as lane:
        load(runner.pool, lane, prompt, states)
        return computed(runner, lane, ids, places, len(answer) + 1)


# Which of the texts' tokens are computed again --------------------------------------------------


def chosen(
    scores: Sequence[float], prompt: SegmentedPrompt, share: float, selector: TokenSelector
) -> Sequence[int]:
    """Return the places of a prompt's texts that a selector chooses, a share of all."""
    places = [range(one.start, one.end) for one in prompt.chunks]
    return selector.choose(scores, places, math.ceil(share * sum(map(len, places))))


def question_attention(
    runner: PackedRunner,
    prompt: SegmentedPrompt,
    states: States,
    layers: Sequence[int],
    asked: Asked = "question",
) -> list[float]:
    """Return how much the question looks at each place, meaned over heads and layers.

    Args:
        runner: computes the question, over the texts' states.
        prompt: its texts are all in ``states``.
        states: of texts behind the prompt's head.
        layers: which, at least one, ascending.
        asked: whether all tokens of the question look, and are summed, or its last one.
    """
    end = prompt.chunks[-1].end
    rows = range(len(prompt.ids) - end)
    probe = _LayersProbe(layers, rows if asked == "question" else rows[-1:])
    with lane_of(runner.pool, len(prompt.ids)) as lane:
        load(runner.pool, lane, prompt, states)
        if before := sorted({*range(end)} - {*places_of(prompt)}):
            computed(runner, lane, prompt.ids, before)
        computed(runner, lane, prompt.ids, range(end, len(prompt.ids)), probe=probe)
    return torch.stack(probe.found).mean(0).tolist()


class _LayersProbe(Probe):
    """A probe that looks in the next of some layers, ascending, once it has one's scores."""

    def __init__(self, layers: Sequence[int], rows: Sequence[int]) -> None:
        self.found: list[torch.Tensor] = []
        self._left = iter(layers)
        super().__init__(next(self._left), rows)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "scores" and value is not None:
            self.found.append(value)
            self.layer = next(self._left, self.layer)


def first_places(prompt: SegmentedPrompt, share: float) -> list[int]:
    """Return as many first places of every text but the first, a share of all texts' in sum."""
    later = prompt.chunks[1:]
    each = round(share * len(places_of(prompt)) / max(1, len(later)))
    return [place for one in later for place in range(one.start, min(one.start + each, one.end))]


def most_deviant(
    runner: PackedRunner,
    prompt: SegmentedPrompt,
    states: States,
    share: float,
    whole: KeyValues,
) -> list[int]:
    """Return the places of texts whose keys and values of the second layer deviate most.

    Args:
        runner: moves the texts' states to their places.
        prompt: its texts are all in ``states``.
        states: of texts behind the prompt's head.
        share: of the texts' tokens.
        whole: what full attention gives, computed to its end. That costs what reuse would save:
            this is for the choice it makes, not for its time.
    """
    end = prompt.chunks[-1].end
    with lane_of(runner.pool, end) as lane:
        load(runner.pool, lane, prompt, states)
        moved = runner.pool.read(lane, range(end))
    deviation = torch.zeros(end)
    for ours, theirs in ((whole.keys, moved.keys), (whole.values, moved.values)):
        apart = ours[DEVIATION_LAYER, :, :end].float() - theirs[DEVIATION_LAYER].float()
        deviation += apart.square().sum((0, 2)).cpu()
    return greatest(deviation, places_of(prompt), share)


def greatest(
    values: torch.Tensor, places: Sequence[int], share: float, start: int = 0
) -> list[int]:
    """Return a share of places, those with the greatest values, ascending.

    ``values`` has those of the places from ``start`` on.
    """
    among = torch.tensor(places)
    best = values[among - start].topk(round(share * len(places))).indices
    return sorted(among[best].tolist())


def places_of(prompt: SegmentedPrompt) -> list[int]:
    """Return the places of a prompt's texts, ascending."""
    return [place for one in prompt.chunks for place in range(one.start, one.end)]


# Rows and lanes ---------------------------------------------------------------------------------


def computed(
    runner: PackedRunner,
    lane: int,
    ids: Sequence[int],
    places: Sequence[int],
    last: int = 1,
    probe: Probe | None = None,
) -> torch.Tensor:
    """Compute the tokens at places of a prompt; return the logits of the last ones."""
    asked = range(len(places) - last, len(places))
    taken = [ids[place] for place in places]
    return runner.run([SequenceRows(lane, taken, places, places, asked, probe=probe)])


def load(pool: LanePool, lane: int, prompt: SegmentedPrompt, states: States) -> None:
    """Put the states of a prompt's texts to their places."""
    for one in prompt.chunks:
        pool.write(lane, one.start, states[one.ids])


@contextmanager
def lane_of(pool: LanePool, tokens: int) -> Iterator[int]:
    """Take a lane for so many tokens and free it; ConfigError where there is no room."""
    lane = pool.take(tokens)
    if lane is None:
        raise ConfigError("the pool has no room", where="baseline", found=f"{tokens} tokens")
    try:
        yield lane
    finally:
        pool.free(lane)
