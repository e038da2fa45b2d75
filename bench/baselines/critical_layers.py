"""Tokens of reused texts by the question's attention to them, in any layers of a model.

The question is computed over the reused texts. Of each token of the texts, the attention it gets is
meaned over heads and summed over the rows asked and over the layers; the tokens that get most are
computed again. FusionRAG does so in the last layer, the engine in that at two thirds of the depth.

QCFuse does so in three critical layers, and computes the question over a part of the texts' tokens,
which saves time; here it sees all of them. Which layers are critical is a property of a model.
QCFuse names them for its models; here they are the ones whose own choice has most in common with
what the answer looks at: the attention that full attention's answer gives to the texts, over all
its tokens and all layers. They are found on other prompts than those measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.baselines.chunk_reuse import States, computed, lane_of, load
from rag_accel.engines.llm.local.batching.rows import Probe
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import Asked, QuestionGuided, TokenSelector

#: Critical layers of a model.
NUM_LAYERS = 3
#: Chooses as QCFuse does.
BY_QUESTION = QuestionGuided("question")


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with the states of its texts, and what full attention answers."""

    prompt: SegmentedPrompt
    states: States
    answer: tuple[int, ...]


def critical_layers(
    runner: PackedRunner, cases: Iterable[Answered], share: float, count: int = NUM_LAYERS
) -> tuple[int, ...]:
    """Return the layers whose choice has most in common with what the answers look at.

    Args:
        runner: computes.
        cases: prompts to find them by.
        share: of the texts' tokens that each layer chooses.
        count: of layers.
    """
    common = [0] * runner.layers
    for case in cases:
        looked_at = set(chosen(_answers_attention(runner, case), case.prompt, share, BY_QUESTION))
        for layer in range(runner.layers):
            scores = question_attention(runner, case.prompt, case.states, [layer])
            own = chosen(scores, case.prompt, share, BY_QUESTION)
            common[layer] += len(looked_at.intersection(own))
    best = sorted(range(runner.layers), key=lambda layer: -common[layer])
    return tuple(sorted(best[:count]))


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
    layers: Iterable[int],
    asked: Asked = "question",
) -> list[float]:
    """Return how much the question looks at each place of the prompt, in layers together.

    Args:
        runner: computes the question, over the texts' states.
        prompt: its texts are all in ``states``.
        states: of texts behind the prompt's head.
        layers: which.
        asked: whether all tokens of the question look, or its last one.
    """
    texts = {place for one in prompt.chunks for place in range(one.start, one.end)}
    end = prompt.chunks[-1].end
    before = [place for place in range(end) if place not in texts]
    with lane_of(runner.pool, len(prompt.ids)) as lane:
        load(runner.pool, lane, prompt, states)
        if before:
            computed(runner, lane, prompt.ids, before)
        return _looks(runner, lane, prompt.ids, range(end, len(prompt.ids)), layers, asked)


def _answers_attention(runner: PackedRunner, case: Answered) -> list[float]:
    """Return how much full attention's answer looks at each place, in all layers together."""
    ids, size = (*case.prompt.ids, *case.answer), len(case.prompt.ids)
    with lane_of(runner.pool, len(ids)) as lane:
        computed(runner, lane, ids, range(size))
        return _looks(runner, lane, ids, range(size, len(ids)), range(runner.layers), "question")


def _looks(
    runner: PackedRunner,
    lane: int,
    ids: Sequence[int],
    places: range,
    layers: Iterable[int],
    asked: Asked,
) -> list[float]:
    rows = range(len(places))
    found: list[list[float]] = []
    for layer in layers:
        probe = Probe(layer, rows if asked == "question" else rows[-1:])
        computed(runner, lane, ids, places, probe=probe)
        found.append(probe.scores.tolist())
    return [sum(each) for each in zip(*found, strict=True)]
