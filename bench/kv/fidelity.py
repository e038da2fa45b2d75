"""How far approximate ways to compute a prompt are from full attention over the same tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bench.baselines import chunk_reuse
from bench.baselines.chunk_reuse import Ids, States, chosen, first_places, question_attention
from bench.results import Row
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.fidelity.divergence import Divergence, divergence, mean_and_error
from rag_accel.fidelity.prompts import Search, TextPrompt
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import QuestionGuided

ATTENTION, FULL, FUSED_15 = "full attention", "full reuse", "fused 15 %"
ALONE, ALONE_15 = "full reuse, texts alone", "fused 15 %, texts alone"
BY_QUESTION_15, PROPHETKV_15 = "whole question, last layer, 15 %", "ProphetKV 15 %"
EPIC_15 = "EPIC 15 %"
#: Of the texts' tokens, what is computed again.
SHARE = 0.15
POOL_BYTES = 1 << 30

_logger = logging.getLogger("bench.kv_fidelity")


class Corpus:
    """Texts of one length by their vectors.

    Args:
        texts: all different.
        embed: returns the vectors of texts, ``[text, dim]``, float32.
        passages: texts that a search finds.
    """

    def __init__(
        self, texts: Sequence[str], embed: Callable[[Sequence[str]], Any], passages: int
    ) -> None:
        self._texts, self._embed, self._passages = texts, embed, passages
        self._vectors = embed(texts)

    def earlier(self, text: str, search: Search) -> Sequence[str]:
        """Return the texts of the prompt that a text was first in.

        They are those found for the text nearest to it, and it comes last unless it is among them.

        Args:
            text: of the corpus.
            search: finds the texts of a prompt.
        """
        at = self._texts.index(text)
        scores = self._vectors @ self._vectors[at]
        scores[at] = -np.inf
        found = search(self._texts[int(scores.argmax())])
        return found if text in found else [*found[:-1], text]

    def search(self, question: str) -> Sequence[str]:
        """Return the texts nearest to a question, the nearest first."""
        scores = self._vectors @ self._embed([question])[0]
        best: list[int] = np.argsort(-scores, kind="stable")[: self._passages].tolist()
        return [self._texts[at] for at in best]

    def among_random(self, question: str) -> Sequence[str]:
        """Return the text nearest to a question among random ones, the same for a question."""
        random, (nearest, *_) = Random(question), self.search(question)
        others = [text for text in self._texts if text != nearest]
        found = [nearest, *random.sample(others, self._passages - 1)]
        return random.sample(found, len(found))


# Arms -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Texts:
    """The states that a prompt's texts take, and the question's attention to each place."""

    states: States
    scores: Sequence[float]


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, what full attention makes of it, and its texts as they are kept and alone."""

    prompt: SegmentedPrompt
    full: chunk_reuse.FullAnswer
    kept: Texts
    alone: Texts


Arm = Callable[[Case], tuple[States, Sequence[int]]]
"""Returns the states that texts take, and the places of the prompt that are computed again."""


class Reader:
    """Full attention and every other way, over one model, by their definitions.

    Args:
        model: of transformers.
        tokenizer: its own.
        context: the most tokens of a prompt and its answer.
    """

    def __init__(self, model: Any, tokenizer: Any, context: int) -> None:
        # Ways that are compared with ours score every layer, which torch alone can.
        options = LocalOptions(runner="torch", kv_reuse="fused")
        loaded = load(model, tokenizer, context=context, pool_bytes=POOL_BYTES, options=options)
        assert isinstance(loaded.runner, PackedRunner)
        self._runner, self._ends, self._tokenizer = loaded.runner, loaded.ends, tokenizer
        self._selector = options.selector
        self._layer = options.scored_layer(self._runner.layers)

    def cases(
        self, prompts: Iterable[TextPrompt], corpus: Corpus, tokens: int, search: Search
    ) -> Iterator[Case]:
        """Yield prompts, answered by full attention over their joined ranges.

        Args:
            prompts: all of one system message.
            corpus: has their texts.
            tokens: of an answer, at most.
            search: finds the texts of the prompts that each text was in before.
        """
        runner, texts = self._runner, tuple[str, ...]()
        states: tuple[States, States] = {}, {}
        for prompt in prompts:
            segments = prompt.segmented(self._tokenizer)
            if prompt.texts != texts:  # else it asks something else about the same ones
                texts, ids = prompt.texts, [chunk.ids for chunk in segments.chunks]
                kept, met = chunk_reuse.KeptStates(runner, segments.head), set[str]()
                for text in texts:
                    if text not in met:
                        earlier = corpus.earlier(text, search)
                        kept.of([self._ids(one) for one in earlier])
                        met.update(earlier)
                states = kept.of(ids), chunk_reuse.encoded(runner, segments)
            full = chunk_reuse.answered(runner, segments.ids, tokens, self._ends)
            yield Case(segments, full, *(self._texts(segments, each) for each in states))

    def logits(self, case: Case, arm: Arm) -> torch.Tensor:
        """Return an arm's logits of each token of full attention's answer."""
        states, again = arm(case)
        answer = case.full.tokens[:-1]
        return chunk_reuse.reuse(self._runner, case.prompt, states, answer, again)

    def arms(self) -> dict[str, Arm]:
        """Return full reuse, ours, and the choices of FusionRAG and its peers, by name."""
        layers = range(self._runner.layers)
        return {
            FULL: lambda case: (case.kept.states, ()),
            FUSED_15: self._fused(attrgetter("kept")),
            ALONE: lambda case: (case.alone.states, ()),
            ALONE_15: self._fused(attrgetter("alone")),
            BY_QUESTION_15: self._by_question(layers[-1:]),
            PROPHETKV_15: self._by_question(layers),
            EPIC_15: lambda case: (case.alone.states, first_places(case.prompt, SHARE)),
            "CacheBlend 15 %": lambda case: (
                case.alone.states,
                chunk_reuse.most_deviant(
                    self._runner, case.prompt, case.alone.states, SHARE, case.full.state
                ),
            ),
        }

    def _fused(self, texts: Callable[[Case], Texts]) -> Arm:
        def again(case: Case) -> tuple[States, Sequence[int]]:
            taken = texts(case)
            return taken.states, chosen(taken.scores, case.prompt, SHARE, self._selector)

        return again

    def _by_question(self, layers: Sequence[int]) -> Arm:
        def again(case: Case) -> tuple[States, Sequence[int]]:
            states = case.alone.states
            scores = question_attention(self._runner, case.prompt, states, layers)
            return states, chosen(scores, case.prompt, SHARE, QuestionGuided("question"))

        return again

    def _texts(self, prompt: SegmentedPrompt, states: States) -> Texts:
        asked = self._selector.asked
        return Texts(states, question_attention(self._runner, prompt, states, [self._layer], asked))

    def _ids(self, text: str) -> Ids:
        return TextPrompt((text,), "?").segmented(self._tokenizer).chunks[0].ids


# Figures over prompts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The divergence of each arm, prompt by prompt."""

    workload: str
    found: Mapping[str, Sequence[Divergence]]

    def rows(self) -> list[Row]:
        """Return means over prompts with their standard errors."""
        rows: list[Row] = []
        for name, each in self.found.items():
            for metric in ("kl_first", "kl_mean", "top1"):
                values = [getattr(one, metric) for one in each]
                rows += _figures(name, self.workload, metric, *mean_and_error(values), len(each))
            if name != ALONE:
                value, error, n = self.recovers(name), self.recovery_error(name), len(each)
                rows += _figures(name, self.workload, "recovered_of_kl", value, error, n)
        return rows

    def mean(self, name: str, metric: str) -> float:
        """Return the mean of a metric over prompts."""
        return fmean(getattr(one, metric) for one in self.found[name])

    def recovers(self, name: str) -> float:
        """Return the share of the divergence of texts alone that an arm does not have."""
        return _recovered(self._kl(name), self._kl(ALONE))

    def recovery_error(self, name: str) -> float:
        """Return the standard error of that share over prompts, by the jackknife."""
        ours, full = self._kl(name), self._kl(ALONE)
        n = len(ours)
        if n < 2:
            return 0.0
        left = [_recovered(_without(ours, at), _without(full, at)) for at in range(n)]
        middle = fmean(left)
        return math.sqrt((n - 1) / n * sum((one - middle) ** 2 for one in left))

    def _kl(self, name: str) -> list[float]:
        return [one.kl_mean for one in self.found[name]]


def measure(
    reader: Reader, arms: Mapping[str, Arm], prompts: str, cases: Iterable[Case]
) -> Fidelity:
    """Compare every arm with full attention over the answer to each prompt.

    Args:
        reader: computes.
        arms: by name; full reuse of texts alone is among them.
        prompts: what they are, for the workload's name.
        cases: of the prompts.
    """
    found: dict[str, list[Divergence]] = {name: [] for name in arms}
    sizes: list[int] = []
    for case in cases:
        for name, arm in arms.items():
            found[name].append(divergence(case.full.logits, reader.logits(case, arm)))
        sizes.append(len(case.prompt.ids))
        _logger.info("%d %s of %d tokens", len(sizes), prompts, sizes[-1])
    return Fidelity(f"{len(sizes)} {prompts}, {min(sizes)} to {max(sizes)} tokens", found)


# Answers of a reader that was trained on such prompts ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Gold:
    """A prompt whose answer is known.

    Args:
        prompt: its texts are those of a corpus.
        answer: the token.
        is_cut_off: whether another text says who the text with the answer is about.
    """

    prompt: TextPrompt
    answer: int
    is_cut_off: bool


@dataclass(frozen=True, slots=True)
class Matches:
    """Whether the answer of each arm is right, question by question of each seed."""

    questions: str
    found: Mapping[str, Sequence[Sequence[bool]]]

    def rows(self) -> list[Row]:
        """Return the exact match of each arm, and its standard error over seeds."""
        rows: list[Row] = []
        for name, seeds in self.found.items():
            workload = f"{sum(map(len, seeds))} {self.questions}, {len(seeds)} seeds"
            shares = mean_and_error([fmean(each) for each in seeds])
            rows += _figures(name, workload, "exact_match", *shares, sum(map(len, seeds)))
        return rows

    def mean(self, name: str) -> float:
        """Return an arm's exact match, meaned over seeds."""
        return fmean(map(fmean, self.found[name]))


def match(
    reader: Reader, arms: Mapping[str, Arm], seeds: Sequence[tuple[Corpus, Sequence[Gold]]]
) -> tuple[Matches, Matches]:
    """Answer questions by every arm and by full attention.

    Returns the answers to all of them, and to those that are cut off.

    Args:
        reader: computes.
        arms: by name.
        seeds: the questions of each, with the corpus that has their texts.
    """
    names = (ATTENTION, *arms)
    every, cut_off = ({name: [[] for _ in seeds] for name in names} for _ in range(2))
    for seed, (corpus, questions) in enumerate(seeds):
        prompts = (gold.prompt for gold in questions)
        cases = reader.cases(prompts, corpus, 1, corpus.search)
        for gold, case in zip(questions, cases, strict=True):
            given = {ATTENTION: case.full.tokens[0]}
            given |= {name: int(reader.logits(case, arm)[0].argmax()) for name, arm in arms.items()}
            for name, token in given.items():
                for found in (every, cut_off) if gold.is_cut_off else (every,):
                    found[name][seed].append(token == gold.answer)
        _logger.info("%d questions of seed %d", len(questions), seed)
    return Matches("questions", every), Matches("questions about texts that are cut off", cut_off)


def _figures(
    name: str, workload: str, metric: str, value: float, error: float, n: int
) -> list[Row]:
    return [
        Row(name, workload, metric, value, None, n),
        Row(name, workload, f"{metric}_standard_error", error, None, n),
    ]


def _recovered(ours: Sequence[float], full: Sequence[float]) -> float:
    return 1 - sum(ours) / sum(full)


def _without(values: Sequence[float], at: int) -> list[float]:
    return [*values[:at], *values[at + 1 :]]
