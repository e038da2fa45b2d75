"""Prompts as one product a layer where a kernel needs no mask, and in blocks where it cannot."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
import torch
from tiny_models import ids_of, own_logits, packed_logits, part, runner_for, shared

from rag_accel.engines.llm.local.batching.rows import CAUSAL, SequenceRows, Subtrees
from rag_accel.engines.llm.local.model import attention, blocks, cuda_attention
from rag_accel.engines.llm.local.model.attention import Packed
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.engines.llm.local.model.split_attention import split_attention

CLOSE = 1e-5
SPAN = 16


class Kernel:
    """The product of processors in place of a device's, and of how many rows it was asked for."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        self.rows.append(queries.shape[2])
        return split_attention(queries, keys, values, scaling)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(attention, "can_leave_out_masks", lambda *_: True)
    monkeypatch.setattr(attention, "causal_attention", made)
    monkeypatch.setattr(blocks, "LEAST_BLOCK", SPAN)
    monkeypatch.setattr(blocks, "BLOCK_SPAN", SPAN)
    return made


@pytest.mark.parametrize("ends", [[0, 70], [0, 40, 70], [0, 5, 6, 31, 69, 70]])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_each_piece_of_a_prompt_is_one_product(name: str, ends: list[int], kernel: Kernel) -> None:
    model, ids = shared(name), ids_of(70, 1)
    runner = runner_for(model)
    lane = runner.pool.take(70)
    found = torch.cat([runner.run([part(lane, ids, *piece)]) for piece in pairwise(ends)])
    assert (found - own_logits(model, ids)).abs().max() <= CLOSE
    sizes = [end - start for start, end in pairwise(ends)]
    assert kernel.rows == [size for size in sizes if size > 1 for _ in range(runner.layers)]


def test_prompts_and_single_rows_of_one_forward_are_the_models_own(kernel: Kernel) -> None:
    model, prompts = shared("llama"), [ids_of(length, length) for length in (70, 37, 5)]
    found = packed_logits(runner_for(model), prompts, Random(1))
    for ids, logits in zip(prompts, found, strict=True):
        assert (logits - own_logits(model, ids)).abs().max() <= CLOSE
    assert kernel.rows


def test_rows_past_a_window_are_computed_in_blocks(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = shared("mistral"), ids_of(70, 1)
    runner = runner_for(model)
    lane = runner.pool.take(70)
    asked: list[int] = []
    masked = attention.masked_attention

    def counted(queries: torch.Tensor, *given: torch.Tensor | float | None) -> torch.Tensor:
        asked.append(queries.shape[2])
        return masked(queries, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "masked_attention", counted)
    found = runner.run([part(lane, ids, 0, 70)])
    assert (found - own_logits(model, ids)).abs().max() <= CLOSE
    assert not kernel.rows
    assert asked == [16, 16, 16, 16, 6] * runner.layers


Item = tuple[list[int], list[int], Subtrees | None]


def outputs(*items: Item) -> torch.Tensor:
    """Attend by the last of several items of one lane: positions, slots and who sees whom."""
    pool = TensorPool(layers=1, heads=1, dim=8, context=64, limit_bytes=1 << 20)
    lane = pool.take(64)
    assert lane is not None
    made = torch.Generator().manual_seed(3)
    found = torch.empty(0)
    for positions, slots, tree in items:
        rows = SequenceRows(lane, [0] * len(slots), slots, positions, visible=tree or CAUSAL)
        packed = Packed(pool, [rows])
        packed.write(0, *torch.randn(2, 1, len(slots), 8, generator=made))
        queries = torch.randn(2, len(slots), 8, generator=made)
        found = packed.attend(0, queries, None, None)
    return found


HEAD = (list(range(8)), list(range(8)), None)


@pytest.mark.parametrize(
    ("items", "is_one"),
    [
        ([HEAD, ([8, 9, 10], [8, 9, 10], None)], True),
        ([([*range(7), 9], list(range(8)), None), ([8, 9], [8, 9], None)], False),
        ([HEAD, ([8, 9, 11], [8, 9, 11], None)], False),
        ([HEAD, ([3, 5], [3, 5], None)], False),
        ([HEAD, ([5, 6], [5, 6], None)], True),
        ([HEAD, ([8, 9, 10], [8, 9, 10], Subtrees([11, 10, 11]))], False),
    ],
    ids=["behind all", "behind a later one", "with a gap", "scattered", "written again", "a tree"],
)
def test_rows_that_do_not_see_all_before_them_keep_the_mask(
    items: list[Item],
    is_one: bool,
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = outputs(*items)
    assert (len(kernel.rows) == len(items)) == is_one
    monkeypatch.setattr(attention, "can_leave_out_masks", lambda *_: False)
    kernel.rows.clear()
    assert (found - outputs(*items)).abs().max() <= CLOSE
    assert not kernel.rows


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices_have_no_such_kernel(device: str, dtype: torch.dtype) -> None:
    assert not cuda_attention.can_leave_out_masks(torch.device(device), dtype, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_processors_compute_masked_products_as_torch_does(dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    given = [torch.randn(1, 2, 9, 8, generator=made).to(dtype) for _ in range(3)]
    mask = cuda_attention.aligned_zeros(torch.Size((1, 1, 9, 9)), dtype, torch.device("cpu"))
    assert mask.is_contiguous()
    mask.masked_fill_(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    found = cuda_attention.masked_attention(given[0], given[1], given[2], mask, 0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        given[0], given[1], given[2], attn_mask=mask, scale=0.5
    )
    assert torch.equal(found, expected)
