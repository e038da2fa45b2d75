"""Critical layers (QCFuse): what the question looks at, in the layers that show it best.

The question is computed over the reused texts. Of each token of the texts, the attention it gets is
meaned over heads and summed over the question's tokens and over three layers; the tokens that get
most are computed again. QCFuse computes the question over a part of the texts' tokens, which saves
time; here it sees all of them.

Which layers are critical is a property of a model. QCFuse names them for its models; here they are
the ones whose own choice has most in common with what the answer looks at: the attention that full
attention's answer gives to the texts, over all its tokens and all layers. They are found on other
prompts than those measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.baselines.chunk_reuse import States
from rag_accel.engines.llm.local.batching.rows import Probe, Runner, SequenceRows
from rag_accel.errors import ConfigError
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import Asked, QuestionGuided

#: Layers of a model that are looked at.
NUM_LAYERS = 3


class CriticalLayers:
    """A selector of the tokens that the question looks at, in several layers together.

    Args:
        layers: which.
    """

    asked: Asked = "question"

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)

    def choose(
        self, scores: Sequence[float], candidates: Sequence[range], count: int
    ) -> Sequence[int]:
        """Return the places with the greatest scores, which are sums over the layers."""
        return QuestionGuided("question").choose(scores, candidates, count)

    def chosen(
        self, runner: Runner, prompt: SegmentedPrompt, states: States, share: float
    ) -> Sequence[int]:
        """Return the places of a prompt's texts to be computed again, a share of all.

        Args:
            runner: computes the question, over the texts' states.
            prompt: its texts are all in ``states``.
            states: of texts behind the prompt's head.
            share: of the texts' tokens.
        """
        of_each = question_attention(runner, prompt, states, self.layers)
        scores = [sum(at_place) for at_place in zip(*of_each, strict=True)]
        return self.choose(scores, *_wanted(prompt, share))


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with the states of its texts, and what full attention answers."""

    prompt: SegmentedPrompt
    states: States
    answer: tuple[int, ...]


def profiled(
    runner: Runner, cases: Iterable[Answered], share: float, count: int = NUM_LAYERS
) -> CriticalLayers:
    """Return the layers whose choice has most in common with what the answers look at.

    Args:
        runner: computes.
        cases: prompts to find them by.
        share: of the texts' tokens that each layer chooses.
        count: of layers.
    """
    common = [0] * runner.layers
    for case in cases:
        looked_at = set(_answers_choice(runner, case, share))
        each = question_attention(runner, case.prompt, case.states, range(runner.layers))
        for layer, scores in enumerate(each):
            chosen = CriticalLayers([layer]).choose(scores, *_wanted(case.prompt, share))
            common[layer] += len(looked_at.intersection(chosen))
    best = sorted(range(runner.layers), key=lambda layer: -common[layer])
    return CriticalLayers(sorted(best[:count]))


def question_attention(
    runner: Runner, prompt: SegmentedPrompt, states: States, layers: Iterable[int]
) -> list[list[float]]:
    """Return ``[layer][place]``: how much the question looks at each place of the prompt."""
    texts = {place for one in prompt.chunks for place in range(one.start, one.end)}
    end = prompt.chunks[-1].end
    before = [place for place in range(end) if place not in texts]
    with _lane(runner, len(prompt.ids)) as lane:
        for one in prompt.chunks:
            runner.pool.write(lane, one.start, states[one.ids])
        if before:
            _run(runner, lane, prompt.ids, before)
        asked = range(end, len(prompt.ids))
        return [_looks(runner, lane, prompt.ids, asked, layer) for layer in layers]


def _answers_choice(runner: Runner, case: Answered, share: float) -> Sequence[int]:
    """Return the places of texts that full attention's answer looks at most, in all layers."""
    ids, size = (*case.prompt.ids, *case.answer), len(case.prompt.ids)
    with _lane(runner, len(ids)) as lane:
        _run(runner, lane, ids, range(size))
        asked = range(size, len(ids))
        each = [_looks(runner, lane, ids, asked, layer) for layer in range(runner.layers)]
    scores = [sum(at_place) for at_place in zip(*each, strict=True)]
    return CriticalLayers(range(runner.layers)).choose(scores, *_wanted(case.prompt, share))


def _wanted(prompt: SegmentedPrompt, share: float) -> tuple[list[range], int]:
    places = [range(one.start, one.end) for one in prompt.chunks]
    return places, math.ceil(share * sum(map(len, places)))


def _looks(
    runner: Runner, lane: int, ids: Sequence[int], places: Sequence[int], layer: int
) -> list[float]:
    probe = Probe(layer, range(len(places)))
    _run(runner, lane, ids, places, probe)
    return probe.scores.tolist()


def _run(
    runner: Runner,
    lane: int,
    ids: Sequence[int],
    places: Sequence[int],
    probe: Probe | None = None,
) -> None:
    taken = [ids[place] for place in places]
    asked = range(len(places) - 1, len(places))
    runner.run([SequenceRows(lane, taken, places, places, asked, probe=probe)])


@contextmanager
def _lane(runner: Runner, tokens: int) -> Iterator[int]:
    lane = runner.pool.take(tokens)
    if lane is None:
        raise ConfigError("the pool has no room", where="baseline", found=f"{tokens} tokens")
    try:
        yield lane
    finally:
        runner.pool.free(lane)
