"""A copy shares a model's weights and leaves the model itself as it was."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from tiny_models import MODELS, fresh, ids_of, own_logits, packed_logits, part, runner_for, shared

from rag_accel.engines.embedding.same_model import ModelWatch
from rag_accel.engines.llm.local.model.shared_weights import packed_copy, shared_copy

A = ids_of(30, 1)


def generated(model: Any) -> list[int]:
    """Return what a model generates greedily."""
    ids = torch.tensor([A])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    return out[0].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_the_model_generates_the_same_before_during_and_after(name: str) -> None:
    model = fresh(name)
    before = generated(model)
    runner = runner_for(model)
    lane = runner.pool.take(60)
    runner.run([part(lane, A, 0, 20)])
    during = generated(model)
    runner.run([part(lane, A, 20, 30)])
    del runner
    assert during == before
    assert generated(model) == before


@pytest.mark.parametrize("name", MODELS)
def test_the_model_keeps_its_settings(name: str) -> None:
    model = fresh(name).train()
    before = vars(model.config).copy()
    runner_for(model)
    assert vars(model.config) == before
    assert model.training


def test_weights_are_in_the_same_memory() -> None:
    model = shared("qwen3")
    weights = {one.data_ptr() for one in model.parameters()}
    copied = packed_copy(model)
    assert {one.data_ptr() for one in copied.parameters()} == weights
    assert copied.lm_head.weight is copied.model.embed_tokens.weight


def test_modules_and_settings_are_the_copys_own() -> None:
    model = shared("llama")
    copied = shared_copy(model)
    assert not set(map(id, copied.modules())) & set(map(id, model.modules()))
    assert copied.config is not model.config


def test_a_model_that_is_cast_leaves_the_copy_as_it_was() -> None:
    model = fresh("llama")
    expected = own_logits(model, A)
    runner = runner_for(model)
    model.to(torch.bfloat16)
    found = runner.run([part(runner.pool.take(30), A, 0, 30)])
    assert float((found - expected).abs().max()) <= 1e-5


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another dtype": lambda model: model.to(torch.bfloat16),
    "a setting of the configuration": lambda model: setattr(model.config, "sliding_window", 4),
    "another configuration": lambda model: setattr(model, "config", type(model.config)()),
    "another attention": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_model_is_seen(change: Callable[[Any], Any]) -> None:
    model = fresh("mistral")
    watch = ModelWatch(model)
    change(model)
    assert not watch.is_same()


def test_a_model_that_is_only_used_is_the_same() -> None:
    model = fresh("mistral")
    watch = ModelWatch(model)
    generated(model)
    packed_logits(runner_for(model), [A], Random(0))
    assert watch.is_same()


def test_weights_off_the_cpu_are_not_read_to_be_watched() -> None:
    model = fresh("llama").to("meta")
    assert ModelWatch(model).is_same()
