"""The check of a model's int8 weights: the fidelity of its answers to those by its own weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import POOL_BYTES, LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.fidelity.agreement import AgreementCheck, kept_check
from rag_accel.fidelity.check_plan import (
    COUNT,
    LIMIT_S,
    TARGET,
    TOKENS,
    CheckPlan,
)
from rag_accel.fidelity.divergence import Divergence, divergence
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.kv.agreement import WEIGHTS_CHECKS
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.system.processor import usable_cores


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
) -> AgreementCheck:
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
        compared = plan.compare(own, comparison.of, plan.segmented(own))
    return kept_check(WEIGHTS_CHECKS, 'weights="int8"', rounded, plan, compared, folder)


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
