"""The check of a model's int8 weights: the fidelity of its answers to those by its own weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.paged.int8_verdict import WEIGHTS_CHECKS, WeightsCheckResult
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.fidelity.check_plan import (
    COUNT,
    LIMIT_S,
    TARGET,
    TOKENS,
    CheckPlan,
    ComparedPrompts,
    library_versions,
    verdict_folder,
)
from rag_accel.fidelity.divergence import Divergence, divergence, mean_and_error
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import ERRORS
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.system.processor import usable_cores


@dataclass(frozen=True, slots=True)
class WeightsCheck:
    """The measurements of a check of int8 weights.

    Args:
        model: the name of the model.
        target: the requested agreement.
        passed: whether ``top1`` less two standard errors reaches it.
        top1: share of an answer's tokens that are the most probable ones with int8 weights, too.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from the model's own weights a token, in nats.
        kl_error: its standard error.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        complete: whether all prompts were compared before the time was over.
        file: of the verdict.
    """

    model: str
    target: float
    passed: bool
    top1: float
    top1_error: float
    kl: float
    kl_error: float
    prompts: int
    tokens: int
    complete: bool
    file: Path

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values of JSON."""
        return {**asdict(self), "file": str(self.file)}

    def __str__(self) -> str:
        limited = "" if self.complete else ", as many as the time allowed"
        least = f"{self.target:.0%} of the tokens, less two standard errors"
        return "\n".join(
            [
                f"{self.model}: {self.prompts} prompts, up to {self.tokens} tokens each{limited}",
                f"same most probable token {self.top1:.3f} +- {self.top1_error:.3f}",
                f"divergence (nats a token) {self.kl:.4f} +- {self.kl_error:.4f}",
                f'weights="int8" {"agrees" if self.passed else "does not agree"} in {least}',
                f"kept in {self.file}",
            ]
        )


def check_weights(
    model: Any,
    tokenizer: Any = None,
    *,
    prompts: Sequence[TextPrompt] | None = None,
    target: float = TARGET,
    count: int = COUNT,
    tokens: int = TOKENS,
    limit_s: float = LIMIT_S,
    folder: str | Path | None = None,
    dtype: str | None = None,
    template: str | None = None,
    pool_bytes: int = POOL_BYTES,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> WeightsCheck:
    """Compare answers by int8 weights with those by a model's own, and keep the verdict.

    Takes a minute or more. Each prompt is answered greedily by the model's own weights; then int8
    weights are given these tokens, and the distributions that they had for them are compared.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object.
        pool_bytes: most bytes of keys and values, of each of both.

    The other options are those of ``check_reuse``.

    Raises:
        ConfigError: an option is out of range, the model is not supported or not with int8 weights,
            a prompt has no text that can be told apart or no room, or the time is over before 8
            prompts were compared.
        EngineError: the chat template refuses a prompt.
        OSError: the verdict cannot be written.
    """
    plan = CheckPlan(
        prompts,
        target=target,
        count=count,
        tokens=tokens,
        limit_s=limit_s,
        template=template,
        progress=progress,
        clock=clock,
    )
    int8 = LocalOptions(weights="int8", pool_bytes=pool_bytes)
    rounded = load(model, tokenizer, dtype=dtype, options=int8)
    own = load(model, tokenizer, dtype=dtype, pool_bytes=pool_bytes)
    with _WeightsComparison(own, rounded, plan) as comparison:
        compared = plan.compare(own, comparison.of)
    return _kept(rounded, plan, compared, verdict_folder(folder))


def _kept(
    rounded: LoadedModel, plan: CheckPlan, compared: ComparedPrompts[Divergence], folder: Path
) -> WeightsCheck:
    """Return the check, its verdict written."""
    top1, top1_error = mean_and_error([each.top1 for each in compared.found])
    kl, kl_error = mean_and_error([each.kl_mean for each in compared.found])
    verdict = WeightsCheckResult(
        model=rounded.runner.identity(),
        name=rounded.name,
        target=plan.target,
        passed=top1 - ERRORS * top1_error >= plan.target,
        top1=top1,
        top1_error=top1_error,
        kl=kl,
        prompts=len(compared.found),
        tokens=plan.tokens,
        written=time.time(),
        versions=library_versions(),
    )
    return WeightsCheck(
        *(verdict.name, verdict.target, verdict.passed, top1, top1_error, kl, kl_error),
        *(verdict.prompts, verdict.tokens),
        complete=compared.is_complete,
        file=WEIGHTS_CHECKS.write(folder, verdict),
    )


class _WeightsComparison:
    """The engines of a model by its own weights and by int8 ones, each with a pool of its own."""

    def __init__(self, own: LoadedModel, rounded: LoadedModel, plan: CheckPlan) -> None:
        self._ends, self._tokens, template = own.ends, plan.tokens, plan.template
        options, threads = LocalOptions(prefix_lanes=0), usable_cores()
        self._own = ForcedEngine(own, options, threads, template)
        self._rounded = ForcedEngine(rounded, options, threads, template)

    def __enter__(self) -> _WeightsComparison:
        return self

    def __exit__(self, *error: object) -> None:
        for engine in (self._own, self._rounded):
            engine.close()

    def of(self, prompt: TextPrompt, segments: SegmentedPrompt) -> Divergence:
        """Return the divergence of int8 weights over the tokens that the own ones choose."""
        ids = segments.ids
        asked = TokenInput(ids=ids, ends=self._ends, most=self._tokens)
        output, full = self._own.answer(asked, len(ids))
        again = prompt.generation_input(len(output.tokens))
        _, near = self._rounded.answer(again, len(ids), output.tokens)
        return divergence(full, near)
