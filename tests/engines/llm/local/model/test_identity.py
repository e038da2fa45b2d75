"""Two models have one identity only if they compute the same states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_runner import tokenizer
from tiny_chat import model

from rag_accel.engines.llm.local.model.loading import load
from rag_accel.kv.identity import model_identity


def identity(source: Any) -> str:
    return model_identity(source, how="test")


def one_weight(changed: Any) -> None:
    changed.get_decoder().embed_tokens.weight.data[7, 0] += 1e-3


def one_setting(changed: Any) -> None:
    changed.config.rms_norm_eps *= 2


def one_frequency(changed: Any) -> None:
    changed.get_decoder().rotary_emb.inv_freq[0] *= 2


def another_dtype(changed: Any) -> None:
    changed.to(torch.bfloat16)


@pytest.mark.parametrize("change", [one_weight, one_setting, one_frequency, another_dtype])
def test_whatever_a_state_depends_on_makes_another(change: Callable[[Any], None]) -> None:
    changed = copy.deepcopy(model())
    assert identity(changed) == identity(model())
    change(changed)
    assert identity(changed) != identity(model())


def test_how_states_are_computed_makes_another() -> None:
    assert model_identity(model(), how="other") != identity(model())


def test_a_model_is_the_same_by_folder_and_as_an_object(tmp_path: Path) -> None:
    own = copy.deepcopy(model())
    own.config.dtype = None  # as a model is that was made and not loaded
    before = identity(own)
    own.save_pretrained(tmp_path)
    assert identity(own) == before
    tokenizer().save_pretrained(tmp_path)
    by_folder = load(str(tmp_path), pool_bytes=1 << 22).runner.identity()
    assert load(model(), tokenizer(), pool_bytes=1 << 22).runner.identity() == by_folder
    assert load(str(tmp_path), dtype="bfloat16").runner.identity() != by_folder
