"""Rows of several sequences in one call give the logits of a model's own forward."""

from __future__ import annotations

from random import Random

import pytest
import torch
from bfloat16_kit import DTYPES
from tiny_models import (
    MODELS,
    fresh,
    ids_of,
    own_logits,
    packed_logits,
    paged_runner_for,
    part,
    shared,
)

from rag_accel.engines.llm.local.batching.rows import Probe, SequenceRows
from rag_accel.engines.llm.local.model.self_check import check_runner
from rag_accel.errors import ConfigError

CLOSE = 1e-5
LAYER = 1
A, B, C = ids_of(70, 1), ids_of(37, 2), ids_of(5, 3)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much logits differ at most."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cross_product(keep=3)
def test_each_family_is_proved(name: str, dtype: torch.dtype) -> None:
    model = shared(name, dtype)
    check_runner(model, paged_runner_for(model, LAYER), LAYER)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["mistral", "qwen3"])
@pytest.mark.cross_product(keep=4)
def test_chunks_drawn_at_random_with_those_of_others(name: str, seed: int) -> None:
    prompts = [A, B, C, ids_of(21, seed)]
    found = packed_logits(paged_runner_for(shared(name)), prompts, Random(seed))
    for ids, logits in zip(prompts, found, strict=True):
        assert difference(logits, own_logits(shared(name), ids)) <= CLOSE


def test_all_rows_of_reused_texts_computed_again_are_the_whole_prompt() -> None:
    model = shared("qwen3")
    runner = paged_runner_for(model)
    first, second = (runner.pool.take(70) for _ in range(2))
    assert first is not None
    assert second is not None
    runner.run([part(first, A, 0, 60)])
    runner.pool.write(second, 20, runner.pool.read(first, range(5, 45)))  # of other tokens
    found = runner.run([part(second, A, 0, 60)])
    assert difference(found, own_logits(model, A[:60])) <= CLOSE
    assert difference(runner.run([part(second, A, 60, 70)]), own_logits(model, A)[60:]) <= CLOSE


def test_rows_without_logits_are_computed_all_the_same() -> None:
    model = shared("qwen3")
    runner = paged_runner_for(model)
    lane = runner.pool.take(70)
    assert lane is not None
    silent = SequenceRows(lane, A[:40], range(40), range(40))
    assert runner.run([silent]).shape == (0, runner.vocabulary)
    assert difference(runner.run([part(lane, A, 40, 70)]), own_logits(model, A)[40:]) <= CLOSE


@pytest.mark.parametrize(
    ("probe", "match"),
    [(Probe(LAYER + 1, [4]), "layer 2"), (Probe(LAYER, [1, 2]), "not the last")],
    ids=["layer", "rows"],
)
def test_attention_that_cannot_be_recorded_is_named(probe: Probe, match: str) -> None:
    runner = paged_runner_for(shared("qwen3"), LAYER)
    lane = runner.pool.take(5)
    assert lane is not None
    with pytest.raises(ValueError, match=match):
        runner.run([SequenceRows(lane, C, range(5), range(5), probe=probe)])


def test_two_items_of_a_lane_are_refused() -> None:
    runner = paged_runner_for(shared("qwen3"))
    lane = runner.pool.take(5)
    with pytest.raises(ValueError, match="one item"):
        runner.run([part(lane, C, 0, 2), part(lane, C, 2, 4)])


def test_another_attention_is_not_proved() -> None:
    model = fresh("qwen3")
    runner = paged_runner_for(model)
    with torch.no_grad():
        other = fresh("qwen3")
        other.model.layers[0].self_attn.v_proj.weight.mul_(1.01)
    check_runner(model, runner)
    with pytest.raises(ConfigError, match="paged attention cannot be proved equal"):
        check_runner(other, runner)


def test_the_form_for_one_thread_gives_the_same() -> None:
    model = shared("qwen3")
    runner = paged_runner_for(model)
    expected = own_logits(model, C)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(2):  # by the form for all threads while that for one is compiled, then by it
            lane = runner.pool.take(5)
            assert lane is not None
            assert difference(runner.run([part(lane, C, 0, 5)]), expected) <= CLOSE
            runner.pool.free(lane)
            runner.forms.wait(60.0)
    finally:
        torch.set_num_threads(threads)
