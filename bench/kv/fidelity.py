"""How far approximate ways to compute a prompt are from full attention over the same tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, get_args

import torch

from bench.baselines import chunk_reuse
from bench.baselines.critical_layers import Answered, CriticalLayers, profiled
from bench.kv.answers import Answerer
from bench.results import Row
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import KvReuse, LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.fidelity.divergence import Divergence, divergence, mean_and_error
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.selection import QuestionGuided

FULL, FUSED, FUSED_15 = "accelerated, full", "fused", "accelerated, fused 15 %"
#: What is computed again by other choices: a share of the texts' tokens, or the first of each.
SHARE, FIRST = 0.15, 8
CRITICAL = "critical layers 15 %"
POOL_BYTES, CHUNK_BYTES = 1 << 28, 1 << 26

_logger = logging.getLogger("bench.kv_fidelity")


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, its tokens, the answer of full attention, and the state of its texts alone."""

    prompt: TextPrompt
    segments: SegmentedPrompt
    answer: tuple[int, ...]
    states: chunk_reuse.States


Arm = Callable[[Case], torch.Tensor]
"""Returns the logits of each token of a case's answer."""

# Arms of the engine -----------------------------------------------------------------------------


def ways(shares: Sequence[float], by_whole_question: bool = True) -> dict[str, Mapping[str, Any]]:
    """Return the options of the engine that are compared, by the arm's name.

    Args:
        shares: of the texts' tokens that are computed again.
        by_whole_question: whether tokens chosen by all of a question's are among them.
    """
    found: dict[str, Mapping[str, Any]] = {FULL: {"kv_reuse": "full"}}
    if FUSED in get_args(KvReuse):
        for share in shares:
            name = f"accelerated, fused {share * 100:.0f} %"
            found[name] = {"kv_reuse": FUSED, "recompute_ratio": share}
        if by_whole_question:
            whole = {"recompute_ratio": SHARE, "selector": QuestionGuided("question")}
            found[f"{FUSED_15}, by the whole question"] = {"kv_reuse": FUSED, **whole}
    return found


def options_of(way: Mapping[str, Any]) -> LocalOptions:
    """Return the options of an engine that reuses texts, wherever computing them is faster."""
    known = {one.name for one in fields(LocalOptions)}
    always = {"reuse_always": True} if "reuse_always" in known else {}
    given: dict[str, Any] = {"prefix_lanes": 2, "chunk_bytes": CHUNK_BYTES, **always, **way}
    return LocalOptions(**given)


class Reader:
    """Full attention and every other way, over one model.

    Args:
        model: of transformers.
        tokenizer: its own.
        context: the most tokens of a prompt and its answer.
        threads: of each forward.
        shares: of the texts' tokens that are computed again.
        answered: shares whose own answers are wanted, too.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        context: int,
        threads: int,
        shares: Sequence[float],
        answered: Sequence[float] = (),
    ) -> None:
        self._load = lambda: load(model, tokenizer, context=context, pool_bytes=POOL_BYTES)
        self._tokenizer = tokenizer
        self._threads = threads
        loaded = self._load()
        self._ends = loaded.ends
        self._exact = ForcedEngine(loaded, LocalOptions(), threads)
        self._forced, self._answering = ways(shares), ways(answered, False)
        self._engines = {
            name: ForcedEngine(self._load(), options_of(way), threads)
            for name, way in {**self._forced, **self._answering}.items()
        }
        # What is compared with scores every layer, which torch alone can.
        torch_only = LocalOptions(runner="torch")
        self._runner = load(
            model, tokenizer, context=context, pool_bytes=POOL_BYTES, options=torch_only
        ).runner
        #: looked at beside other choices, once they were found
        self.critical: CriticalLayers | None = None

    def find_critical_layers(self, prompts: Sequence[TextPrompt], tokens: int) -> None:
        """Find the layers that show best what answers of at most so many tokens look at."""
        cases = [self.case(prompt, tokens)[0] for prompt in prompts]
        given = [Answered(case.segments, case.states, case.answer) for case in cases]
        self.critical = profiled(self._runner, given, SHARE) if given else None

    def case(self, prompt: TextPrompt, tokens: int) -> tuple[Case, torch.Tensor]:
        """Answer a prompt by full attention over its joined ranges, in at most so many tokens."""
        segments = prompt.segmented(self._tokenizer)
        asked = TokenInput(ids=segments.ids, ends=self._ends, most=tokens)
        output, logits = self._exact.answer(asked, len(segments.ids))
        states = chunk_reuse.encoded(self._runner, segments)
        return Case(prompt, segments, output.tokens, states), logits

    def answerer(self) -> Answerer:
        """Return what answers by full attention, by full reuse and with the shares given."""
        engines = {name: self._engines[name] for name in self._answering}
        return Answerer(self._exact, engines, self._tokenizer, self._ends)

    def arms(self, seed: int) -> dict[str, Arm]:
        """Return every way that is compared, by name."""
        forced = {name: self._engine_arm(self._engines[name]) for name in self._forced}
        percent = f"{SHARE * 100:.0f} %"
        critical = {} if self.critical is None else {CRITICAL: self._critical_again}
        return {
            **forced,
            **critical,
            "full reuse by definition": lambda case: self._again(case, []),
            f"random {percent}": lambda case: self._again(
                case, chunk_reuse.random_tokens(case.segments, SHARE, seed)
            ),
            f"first {FIRST} tokens of each text": lambda case: self._again(
                case, chunk_reuse.first_tokens(case.segments, FIRST)
            ),
            f"CacheBlend {percent}": lambda case: self._again(
                case,
                chunk_reuse.most_deviant(self._runner, case.segments, case.states, SHARE),
            ),
        }

    def close(self) -> None:
        """Free the engines."""
        for engine in (self._exact, *self._engines.values()):
            engine.close()

    def _engine_arm(self, engine: ForcedEngine) -> Arm:
        def logits(case: Case) -> torch.Tensor:
            asked = case.prompt.generation_input(len(case.answer))
            return engine.answer(asked, len(case.segments.ids), case.answer)[1]

        return logits

    def _critical_again(self, case: Case) -> torch.Tensor:
        assert self.critical is not None
        again = self.critical.chosen(self._runner, case.segments, case.states, SHARE)
        return self._again(case, again)

    def _again(self, case: Case, places: Sequence[int]) -> torch.Tensor:
        answer = case.answer[:-1]
        return chunk_reuse.reuse(self._runner, case.segments, case.states, answer, places)


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
                rows += _mean_rows(name, self.workload, metric, values)
            if name != FULL:
                value, error, n = self.recovers(name), self.recovery_error(name), len(each)
                rows += _figures(name, self.workload, "recovered_of_kl", value, error, n)
        return rows

    def mean(self, name: str, metric: str) -> float:
        """Return the mean of a metric over prompts."""
        return fmean(getattr(one, metric) for one in self.found[name])

    def recovers(self, name: str) -> float:
        """Return the share of full reuse's divergence that an arm does not have."""
        return _recovered(self._kl(name), self._kl(FULL))

    def recovery_error(self, name: str) -> float:
        """Return the standard error of that share over prompts, by the jackknife."""
        ours, full = self._kl(name), self._kl(FULL)
        n = len(ours)
        if n < 2:
            return 0.0
        left = [_recovered(_without(ours, at), _without(full, at)) for at in range(n)]
        middle = fmean(left)
        return math.sqrt((n - 1) / n * sum((one - middle) ** 2 for one in left))

    def _kl(self, name: str) -> list[float]:
        return [one.kl_mean for one in self.found[name]]


def measure(reader: Reader, prompts: Sequence[TextPrompt], tokens: int) -> Fidelity:
    """Answer each prompt by full attention, and compare every arm over that answer."""
    found: dict[str, list[Divergence]] = {}
    sizes: list[int] = []
    for number, prompt in enumerate(prompts):
        case, full = reader.case(prompt, tokens)
        sizes.append(len(case.segments.ids))
        for name, arm in reader.arms(number).items():
            found.setdefault(name, []).append(divergence(full, arm(case)))
        _logger.info("%d of %d prompts", number + 1, len(prompts))
    workload = f"{len(prompts)} prompts of {min(sizes)} to {max(sizes)} tokens"
    return Fidelity(workload, found)


def _mean_rows(name: str, workload: str, metric: str, values: Sequence[float]) -> list[Row]:
    return _figures(name, workload, metric, *mean_and_error(values), len(values))


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
