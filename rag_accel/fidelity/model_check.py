"""The check of a model: the fidelity of another way to compute it to its own forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.engines.option_checks import check_least, check_share
from rag_accel.errors import ConfigError
from rag_accel.fidelity.divergence import Divergence, divergence
from rag_accel.fidelity.embedding_check import check_embedding, embedding_prompts
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.heads import dated_heads
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import PROPOSED_BELOW, RatioFidelity, proposed_ratio
from rag_accel.fidelity.result import CheckResult
from rag_accel.fidelity.variants import VARIANTS, PromptTokens, Variant, fits
from rag_accel.kv.dependency.report import report_prompts
from rag_accel.kv.verdicts import (
    EMBEDDING_INT8,
    CheckVerdict,
    installed_versions,
    result_folders,
)
from rag_accel.system.processor import usable_cores

#: Of tokens, and the cosine of an embedding model's vectors.
TARGET, COSINE = 0.95, 0.98
RATIOS = (0.0, 0.05, 0.15, 0.3, 0.5)
TOKENS = 10
COUNT = 30
LIMIT_S = 1800.0
#: Of fewer, the standard error says too little.
LEAST_PROMPTS = 8
_LIBRARIES = ("rag-accel", "transformers", "torch")


def check(
    model: Any,
    tokenizer: Any = None,
    *,
    variant: str | Variant = "fused",
    prompts: Sequence[TextPrompt] | None = None,
    target: float | None = None,
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
) -> CheckResult:
    """Compare another way to compute a model with its own, and keep the verdict. Takes minutes.

    Each prompt is answered greedily by the model's own forward; then the variant is given these
    tokens, and the distributions that it had for them are compared.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers; of
            ``embedding-int8`` a ``SentenceTransformer``.
        tokenizer: the tokenizer of a model object.
        variant: ``fused``, reused texts of which a part is computed again; ``dependency``, trees of
            relation paths; ``int8``, weights of 8 bits; ``embedding-int8``, the same of an
            embedding model, by the vectors of the prompts' texts and questions; or a ``Variant``.
        prompts: like those of the program; by default made of Python's documentation: each of the
            eight texts that share most words with a question, of 500, 2,000 and 5,000 tokens as far
            as they have room and time; of ``dependency``, of its standard library's graph.
        target: the share of tokens whose most probable one must be the same, 0.95 by default; of
            ``embedding-int8`` the smallest cosine of a vector to the model's own, 0.98.
        ratios: of ``fused``, shares of the texts' tokens that are computed again.
        count: how many prompts are made, where none are given.
        tokens: most tokens of an answer.
        limit_s: after so many seconds no further prompt is begun.
        folder: where the verdict is kept: a ``kv_folder``; by default one of the user's cache.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        template: a chat template in place of the tokenizer's.
        pool_bytes: most bytes of keys and values; of ``int8``, of each of both models.
        progress: is told how many prompts of how many are done.
        clock: measures ``limit_s``.

    Raises:
        ConfigError: an option is out of range, the model is not supported or not this way, a prompt
            has nothing that can be told apart or no room, or the time is over before 8 prompts were
            compared.
        EngineError: the chat template refuses a prompt.
        OSError: the verdict cannot be written.
    """
    is_embedding = variant == EMBEDDING_INT8.variant
    used = variant if isinstance(variant, Variant) else VARIANTS.get(variant)
    if used is None and not is_embedding:
        valid = " | ".join((*VARIANTS, EMBEDDING_INT8.variant))
        raise ConfigError("unknown variant", where="check", found=variant, valid=valid)
    if target is None:
        target = COSINE if is_embedding else TARGET
    _check_bounds(target, tokens, limit_s, count if prompts is None else len(prompts))
    now = (clock or MonotonicClock()).now
    ends_at = now() + limit_s
    if used is None:
        _require_unused(tokenizer=tokenizer, dtype=dtype, template=template)
        asked = prompts or embedding_prompts(count)

        def goes_on(done: int) -> bool:
            if progress is not None:
                progress(done, len(asked))
            return now() < ends_at

        said = "your prompts" if prompts is not None else "Python's documentation"
        return check_embedding(
            *(model, asked),
            said=said,
            target=target,
            least=LEAST_PROMPTS,
            folder=folder,
            goes_on=goes_on,
        )
    if used.kind.by_ratio:
        _check_ratios(ratios)
    loaded = load(
        model, tokenizer, dtype=dtype, options=replace(used.options, pool_bytes=pool_bytes)
    )
    own = loaded  # in one pool; only other weights need another model
    if used.options.weights != "own":
        own = load(model, tokenizer, dtype=dtype, pool_bytes=pool_bytes)
    asked = prompts or used.prompts(own, count)
    prompting = Prompting(own.tokenizer, template=template)
    encoded = [used.encode(prompting, prompt) for prompt in asked]
    _check_room(own, encoded, tokens)
    shares = sorted(set(ratios)) if used.kind.by_ratio else [0.0]
    ways = [(loaded, replace(used.options, recompute_ratio=share)) for share in shares]
    engines = [(own, LocalOptions(prefix_lanes=0)), *ways]
    found: list[list[Divergence]] = []
    with closing(_score(engines, asked, encoded, tokens, template)) as scores:
        while now() < ends_at and (score := next(scores, None)) is not None:
            found.append(score)
            if progress is not None:
                progress(len(found), len(asked))
    if len(found) < LEAST_PROMPTS:
        raise _too_few("the time was over", len(found), "give a larger limit_s")
    measured = tuple(
        RatioFidelity.of(share, list(each))
        for share, each in zip(shares, zip(*found, strict=True), strict=True)
    )
    verdict, shown = _judge(loaded, measured, target, len(found), tokens)
    compared = encoded[: len(found)]
    sizes = [len(each.ids) for each in compared]
    said = "prompts" if prompts is not None else used.generated
    trees = [(len(each.own), each.tree) for each in compared if each.tree is not None]
    return CheckResult(
        *(loaded.name, used.kind.option, target, verdict.ratio),
        *(shown.top1, shown.top1_error, shown.kl, shown.kl_error),
        measured=measured if used.kind.by_ratio else (),
        prompts=len(found),
        compared=f"{len(found)} {said}, of {min(sizes):,} to {max(sizes):,} tokens",
        tokens=tokens,
        complete=len(found) == len(asked),
        heads=dated_heads(own.tokenizer, asked, template) if used.kind.by_ratio else (),
        file=used.kind.write(result_folders(folder)[0], verdict),
        layouts=report_prompts(trees) if trees else None,
    )


#: Names of earlier releases.
check_reuse = partial(check, variant="fused")
check_paths = partial(check, variant="dependency")
check_weights = partial(check, variant="int8")


def _score(
    engines: Sequence[tuple[LoadedModel, LocalOptions]],
    prompts: Sequence[TextPrompt],
    encoded: Sequence[PromptTokens],
    tokens: int,
    template: str | None,
) -> Generator[list[Divergence]]:
    """Yield of each prompt how far each engine is from the first one over the tokens it chooses.

    The engines of one model work one after the other in one pool.
    """
    with ExitStack() as stack:
        plain, *others = (
            stack.enter_context(closing(ForcedEngine(loaded, options, usable_cores(), template)))
            for loaded, options in engines
        )
        for prompt, ids in zip(prompts, encoded, strict=True):
            asked = TokenInput(ids=ids.own, ends=engines[0][0].ends, most=tokens)
            output, full = plain.answer(asked, len(ids.own))
            again = prompt.generation_input(len(output.tokens), paths_first=ids.tree is not None)
            answers = (each.answer(again, len(ids.ids), output.tokens) for each in others)
            yield [divergence(full, logits) for _, logits in answers]


def _judge(
    loaded: LoadedModel,
    measured: Sequence[RatioFidelity],
    target: float,
    prompts: int,
    tokens: int,
) -> tuple[CheckVerdict, RatioFidelity]:
    """Return the verdict on a way by its measurements, and the measurement that it names."""
    ratio = proposed_ratio(measured, target)
    below = [each for each in measured if each.ratio < PROPOSED_BELOW]
    shown = next((each for each in below if each.ratio == ratio), below[-1])
    verdict = CheckVerdict(
        model=loaded.runner.identity(),
        name=loaded.name,
        target=target,
        ratio=ratio,
        top1=shown.top1,
        top1_error=shown.top1_error,
        prompts=prompts,
        tokens=tokens,
        written=time.time(),
        versions=installed_versions(_LIBRARIES),
        kl=shown.kl,
    )
    return verdict, shown


def _check_bounds(target: float, tokens: int, limit_s: float, count: int) -> None:
    check_share("target", target)
    check_least("tokens", tokens, 1)
    check_least("limit_s", limit_s, 0)
    if count < LEAST_PROMPTS:
        raise _too_few("too few prompts", count, "give more prompts")


def _require_unused(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                "an embedding model is checked as sentence-transformers loads it",
                where=name,
                found=value,
                valid="none with the variant embedding-int8",
            )


def _check_ratios(ratios: Sequence[float]) -> None:
    for ratio in ratios:
        check_share("ratios", ratio)
    if not any(ratio < PROPOSED_BELOW for ratio in ratios):
        valid = f"one below {PROPOSED_BELOW}"
        raise ConfigError("no ratio to propose", where="ratios", found=list(ratios), valid=valid)


def _check_room(loaded: LoadedModel, encoded: Sequence[PromptTokens], tokens: int) -> None:
    for at, ids in enumerate(encoded, 1):
        size = len(ids.ids) + tokens
        if not fits(loaded, size):
            raise ConfigError(
                "a prompt and its answer have no room",
                where=f"prompt {at}",
                found=f"{size} tokens",
                valid=f"the model's context of {loaded.runner.context}, and pool_bytes",
                hint="give fewer or shorter documents",
            )


def _too_few(what: str, found: int, hint: str) -> ConfigError:
    valid = f"{LEAST_PROMPTS} or more, of which an error can be told"
    return ConfigError(what, where="check", found=f"{found} prompts", valid=valid, hint=hint)
