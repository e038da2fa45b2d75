"""The proof, at load, that packed rows give the logits of a model's own forward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.families import (
    ModelShape,
    has_windows,
    narrow_windows,
    refusal,
    transformers_version,
)
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy, shared_copy

#: The most that logits may differ, as a share of the largest one, or of 1 if that is larger.
#: In bfloat16 a model's own logits change with the shape of a batch: each product is rounded to 8
#: bits, and sums of another order round to other numbers. Thirty layers of SmolLM2-135M: 0.02 to
#: 0.03 by packed rows, 0.02 by padding in a batch, 0.13 if scores were a tenth too large.
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-4}
#: Tokens of the prompts.
LENGTHS = (41, 23, 9)
#: How far the prompts are after each forward: chunks alone, with others, and single rows together.
ENDS = ((24, 0, 0), (40, 10, 8), (41, 22, 9), (41, 23, 9))
WINDOW = 8
SEED = 7


def check_equality(model: Any) -> None:
    """Check that a model's logits by packed rows are those of its own forward.

    Layers with a window are also checked with one that the prompts are longer than. The model is
    not changed: what runs are copies that share its weights.

    Raises:
        ConfigError: they differ by more than the bound for its dtype, or cannot be computed.
    """
    own, packed = shared_copy(model), packed_copy(model)
    _check(own, packed, "packed rows")
    if has_windows(model):
        narrow_windows(own, WINDOW)
        narrow_windows(packed, WINDOW)
        _check(own, packed, f"packed rows past a window of {WINDOW}")


def _check(own: Any, packed: Any, what: str) -> None:
    prompts = _prompts(ModelShape.of(own.config))
    try:
        expected, found = own_logits(own, prompts), packed_logits(packed, prompts)
    except Exception as error:
        raise _unproved(what, f"{type(error).__name__}: {error}") from error
    difference = float((expected - found).abs().max())
    bound = BOUNDS[own.dtype] * max(1.0, float(expected.abs().max()))
    # Not the other way round: a difference that is no number proves nothing.
    if not difference <= bound:
        raise _unproved(what, f"logits that differ by {difference:.2g} (at most {bound:.2g})")


def _unproved(what: str, found: str) -> Exception:
    return refusal(
        f"{what} cannot be proved equal to the model's own forward",
        found=found,
        valid="equal logits",
        hint=f"report the model's type with {transformers_version()}, or use the remote engine",
    )


def _prompts(shape: ModelShape) -> list[list[int]]:
    generator = torch.Generator().manual_seed(SEED)
    lengths = [min(length, shape.context) for length in LENGTHS]
    return [
        torch.randint(shape.vocabulary, (length,), generator=generator).tolist()
        for length in lengths
    ]


@torch.inference_mode()
def own_logits(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits ``[token, vocabulary]`` of all prompts, each in a forward of its own."""
    inputs = [torch.tensor([ids], device=model.device) for ids in prompts]
    return torch.cat([model(ids, use_cache=False).logits[0].float() for ids in inputs])


def packed_logits(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the same logits by a copy that attends by packed rows, computed in chunks."""
    shape = ModelShape.of(model.config)
    pool = TensorPool(
        layers=shape.layers,
        heads=shape.heads,
        dim=shape.dim,
        context=max(map(len, prompts)),
        limit_bytes=2**62,
        dtype=model.dtype,
        device=model.device,
    )
    runner = PackedRunner(model, pool, shape.vocabulary)
    lanes = [pool.take(len(ids)) for ids in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for before, after in pairwise([(0,) * len(prompts), *ENDS]):
        parts = {
            lane: range(min(start, len(ids)), min(end, len(ids)))
            for lane, ids, start, end in zip(lanes, prompts, before, after, strict=True)
        }
        rows = [
            SequenceRows(lane, [prompts[lane][at] for at in part], part, part, range(len(part)))
            for lane, part in parts.items()
            if lane is not None and part
        ]
        logits = runner.run(rows).split([len(row) for row in rows]) if rows else ()
        for item, rows_logits in zip(rows, logits, strict=True):
            found[item.lane].append(rows_logits)
    return torch.cat([piece for pieces in found for piece in pieces])
