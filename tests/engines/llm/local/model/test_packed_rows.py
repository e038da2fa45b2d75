"""Rows of several sequences in one forward give the logits of a model's own forward."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tiny_models import (
    MODELS,
    VOCABULARY,
    fresh,
    ids_of,
    own_logits,
    packed_logits,
    part,
    runner_for,
    shared,
)

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.engines.llm.local.model.self_check import BOUNDS

CLOSE = 1e-5
A, B, C = ids_of(70, 1), ids_of(37, 2), ids_of(5, 3)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much logits differ at most."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cross_product(keep=8)
def test_chunks_drawn_at_random_with_those_of_others(name: str, seed: int) -> None:
    prompts = [A, B, C, ids_of(21, seed)]
    found = packed_logits(runner_for(shared(name)), prompts, Random(seed))
    for ids, logits in zip(prompts, found, strict=True):
        assert difference(logits, own_logits(shared(name), ids)) <= CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_sequences_that_decode_together(name: str) -> None:
    runner = runner_for(shared(name))
    lanes = [runner.pool.take(70) for _ in (A, B)]
    runner.run([part(lanes[0], A, 0, 60), part(lanes[1], B, 0, 30)])
    steps = [
        runner.run([part(lanes[1], B, 30 + i, 31 + i), part(lanes[0], A, 60 + i, 61 + i)])
        for i in range(5)
    ]
    found = torch.stack(steps, 1)
    assert difference(found[0], own_logits(shared(name), B)[30:35]) <= CLOSE
    assert difference(found[1], own_logits(shared(name), A)[60:65]) <= CLOSE


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_model_whose_own_attention_is_eager(name: str) -> None:
    model = fresh(name)
    model.set_attn_implementation("eager")
    found = packed_logits(runner_for(model), [A, B], Random(2))
    for ids, logits in zip((A, B), found, strict=True):
        assert difference(logits, own_logits(model, ids)) <= CLOSE


def test_a_lane_between_those_that_decode_is_passed_over() -> None:
    runner = runner_for(shared("llama"))
    first, between, last = (runner.pool.take(70) for _ in range(3))
    runner.run([part(first, A, 0, 40), part(between, C, 0, 5), part(last, B, 0, 36)])
    found = runner.run([part(last, B, 36, 37), part(first, A, 40, 41)])
    expected = [own_logits(shared("llama"), B)[36], own_logits(shared("llama"), A)[40]]
    assert difference(found, torch.stack(expected)) <= CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_within_its_bound(name: str) -> None:
    model = shared(name, torch.bfloat16)
    found = packed_logits(runner_for(model), [A, B, C], Random(1))
    for ids, logits in zip((A, B, C), found, strict=True):
        expected = own_logits(model, ids)
        assert difference(logits, expected) <= BOUNDS[torch.bfloat16] * expected.abs().max()


@pytest.fixture
def runner() -> PackedRunner:
    return runner_for(shared("llama"))


def test_only_asked_rows_have_logits(runner: PackedRunner) -> None:
    lane, other = runner.pool.take(70), runner.pool.take(70)
    assert lane is not None
    assert other is not None
    rows = [
        SequenceRows(lane, A, range(70), range(70), (3, 69)),
        SequenceRows(other, B, range(37), range(37), (36,)),
    ]
    expected = own_logits(shared("llama"), A)[[3, 69]]
    last = own_logits(shared("llama"), B)[36:]
    assert difference(runner.run(rows), torch.cat([expected, last])) <= CLOSE


def test_no_logits_are_asked_for(runner: PackedRunner) -> None:
    lane = runner.pool.take(70)
    assert lane is not None
    found = runner.run([SequenceRows(lane, A, range(70), range(70))])
    assert found.shape == (0, VOCABULARY)


def test_rows_in_the_middle_are_computed_again(runner: PackedRunner) -> None:
    lane = runner.pool.take(70)
    assert lane is not None
    runner.run([part(lane, A, 0, 70)])
    some = [3, 9, 30, 31, 52]
    again = SequenceRows(lane, [A[at] for at in some], some, some, range(5))
    assert difference(runner.run([again]), own_logits(shared("llama"), A)[some]) <= CLOSE


def test_a_sequence_goes_back_and_on_with_other_tokens(runner: PackedRunner) -> None:
    lane = runner.pool.take(70)
    runner.run([part(lane, A, 0, 60)])
    other = [*A[:20], *B]
    found = runner.run([part(lane, other, 20, len(other))])
    assert difference(found, own_logits(shared("llama"), other)[20:]) <= CLOSE


def test_a_sequence_goes_on_from_a_copied_head(runner: PackedRunner) -> None:
    source = runner.pool.take(70)
    assert source is not None
    runner.run([part(source, A, 0, 60)])
    target = runner.pool.fork(source, 20, 70)
    assert target is not None
    other = [*A[:20], *B]
    found = runner.run([part(target, other, 20, len(other))])
    assert difference(found, own_logits(shared("llama"), other)[20:]) <= CLOSE


def test_a_sequence_goes_on_after_the_pool_has_grown(runner: PackedRunner) -> None:
    lane = runner.pool.take(70)
    runner.run([part(lane, A, 0, 60)])
    slots = runner.pool.slots
    assert runner.pool.take(400) is not None
    assert runner.pool.slots > slots
    found = runner.run([part(lane, A, 60, 70)])
    assert difference(found, own_logits(shared("llama"), A)[60:]) <= CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_slots_in_another_order_than_positions(name: str) -> None:
    runner = runner_for(shared(name))
    lane = runner.pool.take(70)
    assert lane is not None
    positions = [*range(30, 60), *range(30)]
    moved = SequenceRows(lane, [A[at] for at in positions], range(60), positions, range(60))
    expected = own_logits(shared(name), A)
    assert difference(runner.run([moved]), expected[positions]) <= CLOSE
    assert difference(runner.run([part(lane, A, 60, 61)]), expected[60:61]) <= CLOSE


def test_two_items_of_one_lane_are_refused(runner: PackedRunner) -> None:
    lane = runner.pool.take(70)
    with pytest.raises(ValueError, match="one item"):
        runner.run([part(lane, A, 0, 4), part(lane, A, 4, 8)])


def test_more_rows_than_the_lane_was_taken_for_are_refused(runner: PackedRunner) -> None:
    lane = runner.pool.take(8)
    with pytest.raises(ValueError, match="not taken for 9"):
        runner.run([part(lane, A, 0, 9)])


def test_running_leaves_torch_as_it_was(runner: PackedRunner) -> None:
    before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads())
    state = torch.get_rng_state()
    runner.run([part(runner.pool.take(70), A, 0, 70)])
    after = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads())
    assert after == before
    assert torch.equal(torch.get_rng_state(), state)
