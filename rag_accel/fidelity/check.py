"""The check of a model: the fidelity of fused prompts by ratio, and the ratio to use."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions, check_least, check_share
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.errors import ConfigError
from rag_accel.fidelity.divergence import Divergence, divergence
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.heads import dated_heads
from rag_accel.fidelity.prompts import TextPrompt, short_prompts
from rag_accel.fidelity.proposal import PROPOSED_BELOW, RatioFidelity, proposed_ratio
from rag_accel.kv.reuse_check import REUSE_CHECKS, ReuseCheckResult
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.verdicts import default_folder
from rag_accel.sample import read_corpus
from rag_accel.system.processor import usable_cores

RATIOS = (0.0, 0.05, 0.15, 0.3, 0.5)
TARGET = 0.95
TOKENS = 10
COUNT = 30
LIMIT_S = 1800.0
#: Of fewer, the standard error says too little.
LEAST_PROMPTS = 8
#: Tokens and passages of generated prompts, and the documents they are made of.
_SAMPLE_TOKENS, _SAMPLE_PASSAGES, _CHUNKS = (360, 600), (4, 6), 500
_CHUNK_BYTES = 1 << 26
_LIBRARIES = ("rag-accel", "transformers", "torch")


@dataclass(frozen=True, slots=True)
class ReuseCheck:
    """The measurements of a check, and the ratio it proposes.

    Args:
        model: the name of the model.
        target: the requested agreement.
        ratio: the smallest ``recompute_ratio`` that meets it; None if fused does not pay here.
        measured: the fidelity of each ratio.
        prompts: how many were compared.
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
                f"{self.model}: {self.prompts} prompts, up to {self.tokens} tokens each{limited}",
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
        prompts: like those of the program; by default made of Python's documentation.
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
    clock = clock or MonotonicClock()
    ends_at = clock.now() + limit_s
    _check(target, ratios, tokens, limit_s, count if prompts is None else len(prompts))
    fused = LocalOptions(kv_reuse="fused", pool_bytes=pool_bytes)
    loaded = load(model, tokenizer, dtype=dtype, options=fused)
    if prompts is None:
        prompts = sample_prompts(loaded.tokenizer, count)
    segmented = segmented_prompts(loaded, prompts, tokens, template)
    found: list[list[Divergence]] = []
    with _Comparison(loaded, sorted(set(ratios)), tokens, template) as comparison:
        for prompt, segments in zip(prompts, segmented, strict=True):
            if clock.now() >= ends_at:
                break
            found.append(comparison.of(prompt, segments))
            if progress is not None:
                progress(len(found), len(prompts))
    if len(found) < LEAST_PROMPTS:
        raise too_few("the time was over", f"{len(found)} prompts", "give a larger limit_s")
    each = zip(*found, strict=True)
    measured = tuple(map(RatioFidelity.of, comparison.ratios, map(list, each)))
    ratio = proposed_ratio(measured, target)
    verdict = _verdict(loaded, measured, ratio, target, len(found), tokens)
    file = REUSE_CHECKS.write(
        default_folder() if folder is None else Path(folder).expanduser(), verdict
    )
    return ReuseCheck(
        *(loaded.name, target, ratio, measured, len(found), tokens),
        complete=len(found) == len(prompts),
        heads=dated_heads(loaded.tokenizer, prompts, template),
        file=file,
    )


class _Comparison:
    """Full attention and each ratio, by engines that work one after the other in one pool."""

    def __init__(
        self, loaded: LoadedModel, ratios: Sequence[float], tokens: int, template: str | None
    ) -> None:
        self.ratios = ratios
        self._ends, self._tokens = loaded.ends, tokens
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
        reuse_always=True,
        prefix_lanes=0,
        chunk_bytes=_CHUNK_BYTES,
    )


def sample_prompts(tokenizer: Any, count: int) -> list[TextPrompt]:
    """Return prompts made of Python's documentation."""
    documents = read_corpus(_CHUNKS).documents
    return short_prompts(tokenizer, documents, count, _SAMPLE_TOKENS, _SAMPLE_PASSAGES)


def segmented_prompts(
    loaded: LoadedModel, prompts: Sequence[TextPrompt], tokens: int, template: str | None
) -> list[SegmentedPrompt]:
    """Return the tokens of prompts, range by range.

    Raises:
        ConfigError: one has no text that can be told apart, or no room with its answer.
        EngineError: the chat template refuses one.
    """
    found = [prompt.segmented(loaded.tokenizer, template) for prompt in prompts]
    for at, segments in enumerate(found, 1):
        size = len(segments.ids) + tokens
        if size > loaded.runner.context or not loaded.runner.pool.fits(size):
            raise ConfigError(
                "a prompt and its answer have no room",
                where=f"prompt {at}",
                found=f"{size} tokens",
                valid=f"the model's context of {loaded.runner.context}, and pool_bytes",
                hint="give fewer or shorter documents",
            )
    return found


def _check(target: float, ratios: Sequence[float], tokens: int, limit_s: float, count: int) -> None:
    for ratio in ratios:
        check_share("ratios", ratio)
    if not any(ratio < PROPOSED_BELOW for ratio in ratios):
        valid = f"one below {PROPOSED_BELOW}"
        raise ConfigError("no ratio to propose", where="ratios", found=list(ratios), valid=valid)
    check_bounds(target, tokens, limit_s, count)


def check_bounds(target: float, tokens: int, limit_s: float, count: int) -> None:
    """Check the bounds of a check.

    Raises:
        ConfigError: one is out of range.
    """
    check_share("target", target)
    check_least("tokens", tokens, 1)
    check_least("limit_s", limit_s, 0)
    if count < LEAST_PROMPTS:
        raise too_few("too few prompts", f"{count} prompts", "give more prompts")


def too_few(what: str, found: str, hint: str) -> ConfigError:
    """Return the error about fewer prompts than an error of a mean can be told of."""
    valid = f"{LEAST_PROMPTS} or more, of which an error can be told"
    return ConfigError(what, where="check", found=found, valid=valid, hint=hint)


def _verdict(
    loaded: LoadedModel,
    measured: Sequence[RatioFidelity],
    ratio: float | None,
    target: float,
    prompts: int,
    tokens: int,
) -> ReuseCheckResult:
    below = [each for each in measured if each.ratio < PROPOSED_BELOW]
    shown = next((each for each in below if each.ratio == ratio), below[-1])
    return ReuseCheckResult(
        model=loaded.runner.identity(),
        name=loaded.name,
        target=target,
        ratio=ratio,
        top1=shown.top1,
        top1_error=shown.top1_error,
        prompts=prompts,
        tokens=tokens,
        written=time.time(),
        versions=library_versions(),
    )


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute, by name."""
    found: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[name] = "unknown"
    return found


def _line(found: RatioFidelity) -> str:
    top1 = f"{found.top1:.3f} +- {found.top1_error:.3f}"
    return f"{found.ratio:>10.0%}  {top1:<24}  {found.kl:.4f} +- {found.kl_error:.4f}"
