"""The check of a model: the fidelity of fused prompts by ratio, and the ratio to use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.engines.option_checks import check_share
from rag_accel.errors import ConfigError
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
from rag_accel.fidelity.divergence import Divergence, divergence
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.heads import dated_heads
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import PROPOSED_BELOW, RatioFidelity, proposed_ratio
from rag_accel.kv.reuse_check import REUSE_CHECKS, ReuseCheckResult
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.system.processor import usable_cores

RATIOS = (0.0, 0.05, 0.15, 0.3, 0.5)
_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class ReuseCheck:
    """The measurements of a check, and the ratio it proposes.

    Args:
        model: the name of the model.
        target: the requested agreement.
        ratio: the smallest ``recompute_ratio`` that meets it; None if fused does not pay here.
        measured: the fidelity of each ratio.
        prompts: how many were compared.
        compared: their description.
        tokens: most tokens of an answer.
        complete: whether all prompts were compared before the time was over.
        heads: sentences about dates and times that stand in the heads of prompts.
        file: of the verdict.
    """

    model: str
    target: float
    ratio: float | None
    measured: tuple[RatioFidelity, ...]
    prompts: int
    compared: str
    tokens: int
    complete: bool
    heads: tuple[str, ...]
    file: Path

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values of JSON."""
        return {**asdict(self), "file": str(self.file)}

    def __str__(self) -> str:
        limited = "" if self.complete else ", as many as the time allowed"
        return "\n".join(
            [
                f"{self.model}: {self.compared}, answers of up to {self.tokens}{limited}",
                "recomputed  same most probable token  divergence (nats a token)",
                *map(_line, self.measured),
                self._proposal(),
                *(f"{said}: texts are computed again when it changes" for said in self.heads),
                f"kept in {self.file}",
            ]
        )

    def _proposal(self) -> str:
        if self.ratio is None:
            return (
                f"fused does not pay on this model: no ratio below {PROPOSED_BELOW} agrees in "
                f"{self.target:.0%} of the tokens, less two standard errors"
            )
        return f'proposed: kv_reuse="fused", recompute_ratio={self.ratio:g}'


def check_reuse(
    model: Any,
    tokenizer: Any = None,
    *,
    prompts: Sequence[TextPrompt] | None = None,
    target: float = TARGET,
    ratios: Sequence[float] = RATIOS,
    count: int = COUNT,
    tokens: int = TOKENS,
    limit_s: float = LIMIT_S,
    folder: str | Path | None = None,
    dtype: str | None = None,
    template: str | None = None,
    pool_bytes: int = POOL_BYTES,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> ReuseCheck:
    """Compare fused prompts of a model with computed ones, and keep the verdict. Takes minutes.

    Each prompt is answered greedily by full attention; then every ratio is given these tokens, and
    the distributions that it had for them are compared.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object.
        prompts: like those of the program; by default made of Python's documentation: each of the
            eight texts that share most words with a question, of 500, 2,000 and 5,000 tokens as far
            as they have room and time.
        target: the share of tokens whose most probable one must be the same.
        ratios: shares of the texts' tokens that are computed again.
        count: how many prompts are made, where none are given.
        tokens: most tokens of an answer.
        limit_s: after so many seconds no further prompt is begun.
        folder: where the verdict is kept: a ``kv_folder``; by default one of the user's cache.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        pool_bytes: most bytes of keys and values.
        progress: is told how many prompts of how many are done.
        clock: measures ``limit_s``.

    Raises:
        ConfigError: an option is out of range, the model is not supported, a prompt has no text
            that can be reused or no room, or the time is over before 8 prompts were compared.
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
    _check_ratios(ratios)
    fused = LocalOptions(kv_reuse="fused", pool_bytes=pool_bytes)
    loaded = load(model, tokenizer, dtype=dtype, options=fused)
    with _Comparison(loaded, sorted(set(ratios)), plan) as comparison:
        compared = plan.compare(loaded, comparison.of, plan.segmented(loaded))
    each = zip(*compared.found, strict=True)
    measured = tuple(map(RatioFidelity.of, comparison.ratios, map(list, each)))
    return _kept(loaded, plan, compared, measured, verdict_folder(folder))


class _Comparison:
    """Full attention and each ratio, by engines that work one after the other in one pool."""

    def __init__(self, loaded: LoadedModel, ratios: Sequence[float], plan: CheckPlan) -> None:
        self.ratios = ratios
        self._ends, self._tokens, template = loaded.ends, plan.tokens, plan.template
        # None keeps a lane when its prompt has ended: the next engine needs the room.
        exact = LocalOptions(prefix_lanes=0)
        threads = usable_cores()
        self._exact = ForcedEngine(loaded, exact, threads, template)
        self._fused = [ForcedEngine(loaded, _fused(ratio), threads, template) for ratio in ratios]

    def __enter__(self) -> _Comparison:
        return self

    def __exit__(self, *error: object) -> None:
        for engine in (self._exact, *self._fused):
            engine.close()

    def of(self, prompt: TextPrompt, segments: SegmentedPrompt) -> list[Divergence]:
        """Return the divergence of each ratio from full attention over the same tokens."""
        ids = segments.ids
        exact = TokenInput(ids=ids, ends=self._ends, most=self._tokens)
        output, full = self._exact.answer(exact, len(ids))
        again = prompt.generation_input(len(output.tokens))
        logits = (engine.answer(again, len(ids), output.tokens)[1] for engine in self._fused)
        return [divergence(full, each) for each in logits]


def _fused(ratio: float) -> LocalOptions:
    return LocalOptions(
        kv_reuse="fused",
        recompute_ratio=ratio,
        kv_recipe="alone",  # those of this very prompt would be nearly exact behind each other
        reuse_always=True,
        prefix_lanes=0,
        chunk_bytes=_CHUNK_BYTES,
    )


def _check_ratios(ratios: Sequence[float]) -> None:
    for ratio in ratios:
        check_share("ratios", ratio)
    if not any(ratio < PROPOSED_BELOW for ratio in ratios):
        valid = f"one below {PROPOSED_BELOW}"
        raise ConfigError("no ratio to propose", where="ratios", found=list(ratios), valid=valid)


def _kept(
    loaded: LoadedModel,
    plan: CheckPlan,
    compared: ComparedPrompts[list[Divergence]],
    measured: tuple[RatioFidelity, ...],
    folder: Path,
) -> ReuseCheck:
    """Return the check, its verdict written."""
    ratio = proposed_ratio(measured, plan.target)
    below = [each for each in measured if each.ratio < PROPOSED_BELOW]
    shown = next((each for each in below if each.ratio == ratio), below[-1])
    verdict = ReuseCheckResult(
        model=loaded.runner.identity(),
        name=loaded.name,
        target=plan.target,
        ratio=ratio,
        top1=shown.top1,
        top1_error=shown.top1_error,
        prompts=len(compared.found),
        tokens=plan.tokens,
        written=time.time(),
        versions=library_versions(),
    )
    return ReuseCheck(
        *(verdict.name, verdict.target, ratio, measured, verdict.prompts),
        *(compared.description, verdict.tokens),
        complete=compared.is_complete,
        heads=dated_heads(loaded.tokenizer, compared.prompts, plan.template),
        file=REUSE_CHECKS.write(folder, verdict),
    )


def _line(found: RatioFidelity) -> str:
    top1 = f"{found.top1:.3f} +- {found.top1_error:.3f}"
    return f"{found.ratio:>10.0%}  {top1:<24}  {found.kl:.4f} +- {found.kl_error:.4f}"
