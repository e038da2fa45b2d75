"""Two products without a mask give what one with a mask gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from tiny_models import ids_of, own_logits, part, runner_for, shared

from rag_accel.engines.llm.local.model import attention, split_attention
from rag_accel.engines.llm.local.model.self_check import BOUNDS

Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
CPU = torch.device("cpu")
KV_HEADS, GROUP, DIM = 2, 3, 16
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
#: Of each shape, the slots before the rows and the rows.
SHAPES = [(0, 1), (0, 37), (1, 1), (1, 2), (7, 1), (41, 23), (513, 255), (1000, 256)]


def masked(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Return the same outputs by scores of all slots, in float32."""
    rows, slots = queries.shape[2], keys.shape[1]
    scores = queries.float() @ keys[:, None].float().transpose(-1, -2)
    scores *= queries.shape[-1] ** -0.5 if scaling is None else scaling
    seen = torch.ones(rows, slots, dtype=torch.bool).tril(slots - rows)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values[:, None].float()


def drawn(before: int, rows: int, dtype: torch.dtype, scale: float = 1.0) -> Drawn:
    """Return queries, keys and values."""
    made = torch.Generator().manual_seed(before + rows)
    queries = scale * torch.randn(KV_HEADS, GROUP, rows, DIM, generator=made)
    keys, values = torch.randn(2, KV_HEADS, before + rows, DIM, generator=made).to(dtype)
    return queries.to(dtype), keys, values


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("before", "rows"), SHAPES)
def test_the_merged_products_are_the_masked_one(before: int, rows: int, dtype: torch.dtype) -> None:
    given = drawn(before, rows, dtype)
    found = split_attention.split_attention(*given, None)
    assert found.dtype == dtype
    assert (found.float() - masked(*given, None)).abs().max() <= CLOSE[dtype]


def test_the_scaling_counts_in_both_products() -> None:
    given = drawn(40, 9, torch.float32)
    found = split_attention.split_attention(*given, 0.7)
    assert (found - masked(*given, 0.7)).abs().max() <= 1e-5


def test_scores_that_are_far_apart_are_merged_without_overflow() -> None:
    given = drawn(40, 9, torch.float32, scale=1e4)
    found = split_attention.split_attention(*given, None)
    assert (found - masked(*given, None)).abs().max() <= 1e-4


def test_keys_and_values_may_be_parts_of_a_pool() -> None:
    queries, keys, values = drawn(40, 9, torch.float32)
    wide = [torch.full((KV_HEADS, 100, DIM), torch.nan) for _ in range(2)]
    for one, part_of_it in zip(wide, (keys, values), strict=True):
        one[:, :49] = part_of_it
    found = split_attention.split_attention(queries, wide[0][:, :49], wide[1][:, :49], None)
    assert torch.equal(found, split_attention.split_attention(queries, keys, values, None))


# Where it is used -------------------------------------------------------------------------------


@pytest.fixture
def fresh_proof() -> Iterator[None]:
    split_attention._is_proved.cache_clear()
    yield
    split_attention._is_proved.cache_clear()


@pytest.mark.parametrize("dtype", CLOSE)
def test_the_kernel_of_this_torch_is_proved(dtype: torch.dtype) -> None:
    assert split_attention.can_split(CPU, dtype)


@pytest.mark.parametrize(
    ("device", "dtype"), [("cuda", torch.float32), ("meta", torch.float32), ("cpu", torch.float16)]
)
def test_other_devices_and_dtypes_keep_the_mask(device: str, dtype: torch.dtype) -> None:
    assert not split_attention.can_split(torch.device(device), dtype)


@pytest.mark.usefixtures("fresh_proof")
def test_a_torch_without_the_kernel_keeps_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(split_attention, "_flash", missing)
    assert not split_attention.can_split(CPU, torch.float32)


@pytest.mark.usefixtures("fresh_proof")
def test_a_kernel_that_computes_something_else_keeps_the_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = split_attention._flash

    def other(*given: torch.Tensor, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, sums = kernel(*given, **how)  # type: ignore[arg-type]
        return out, sums + sums.shape[-1]

    monkeypatch.setattr(split_attention, "_flash", other)
    assert not split_attention.can_split(CPU, torch.float32)


class Counted:
    """The products, and how many were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(attention, "LEAST_BEFORE", 4)
        monkeypatch.setattr(attention, "LEAST_ROWS", 2)
        monkeypatch.setattr(attention, "split_attention", self)

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return split_attention.split_attention(*given)  # type: ignore[arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_prompt_in_odd_pieces_has_the_models_logits(
    name: str, dtype: torch.dtype, counted: Counted
) -> None:
    model, ids = shared(name, dtype), ids_of(70, 1)
    runner = runner_for(model)
    lane = runner.pool.take(70)
    ends = [0, 5, 6, 31, 69, 70]
    pieces = [part(lane, ids, start, end) for start, end in pairwise(ends)]
    found = torch.cat([runner.run([piece]) for piece in pieces])
    expected = own_logits(model, ids)
    bound = BOUNDS[dtype] * max(1.0, float(expected.abs().max()))
    assert (found - expected).abs().max() <= bound
    assert counted.count == 2 * runner.layers  # the pieces that end at 31 and at 69


def test_a_window_that_cuts_keeps_the_mask(counted: Counted) -> None:
    model, ids = shared("mistral"), ids_of(70, 1)
    runner = runner_for(model)
    lane = runner.pool.take(70)
    found = torch.cat([runner.run([part(lane, ids, *ends)]) for ends in ((0, 30), (30, 70))])
    assert (found - own_logits(model, ids)).abs().max() <= 1e-5
    assert not counted.count


def test_few_rows_keep_the_mask_however_much_lies_before(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LEAST_ROWS", 8)
    ids, runner = ids_of(47, 1), runner_for(shared("llama"))
    lane = runner.pool.take(47)
    for start, end, products in ((0, 32, 0), (32, 39, 0), (39, 47, runner.layers)):
        runner.run([part(lane, ids, start, end)])
        assert counted.count == products
