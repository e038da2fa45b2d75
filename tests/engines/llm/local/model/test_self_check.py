"""What is not proved equal to a model's own forward is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tiny_models import MODELS, SIZES, fresh, shared
from transformers import LlamaConfig, LlamaForCausalLM

from rag_accel.engines.llm.local.model import attention
from rag_accel.engines.llm.local.model.self_check import check_equality
from rag_accel.errors import ConfigError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cross_product(keep=6)
def test_each_family_is_proved(name: str, dtype: torch.dtype) -> None:
    check_equality(shared(name, dtype))


def test_a_model_for_short_texts_is_proved() -> None:
    sizes = {**SIZES, "max_position_embeddings": 12}
    check_equality(LlamaForCausalLM(LlamaConfig(**sizes)))


def test_a_model_is_not_changed_by_its_proof() -> None:
    model = fresh("qwen2_mixed")
    before = vars(model.config).copy()
    check_equality(model)
    assert vars(model.config) == before
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == [None, 16, 16]


def _altered(change: dict[str, Any]) -> Callable[..., Any]:
    right = attention.attention

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return right(*args, **{**kwargs, **change})

    return wrong


@pytest.fixture(params=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[request.param]


@pytest.mark.parametrize("change", [{"scaling": 0.2}, {"sliding_window": 4}], ids=str)
def test_an_attention_that_computes_otherwise_is_refused(
    change: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attention", _altered(change))
    with pytest.raises(ConfigError, match="packed rows cannot be proved equal") as refused:
        check_equality(shared("llama", dtype))
    assert f"transformers {transformers.__version__}" in str(refused.value)
    assert "differ by" in str(refused.value)


@pytest.mark.parametrize("window", [None, 9], ids=["ignored", "too wide by one"])
@pytest.mark.parametrize("name", ["mistral", "qwen2_mixed"])
def test_a_window_that_is_not_kept_is_refused(
    name: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shared(name)
    monkeypatch.setattr(attention, "attention", _altered({"sliding_window": window}))
    monkeypatch.setattr("rag_accel.engines.llm.local.model.self_check._check", _only_past(window))
    with pytest.raises(ConfigError, match="past a window of 8"):
        check_equality(model)


def _only_past(window: int | None) -> Callable[..., None]:
    from rag_accel.engines.llm.local.model import self_check

    right = self_check._check

    def check(own: Any, packed: Any, what: str) -> None:
        if "window" in what:
            right(own, packed, what)

    return check


def test_an_attention_that_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention", _altered({"sliding_window": "wide"}))
    with pytest.raises(ConfigError, match="TypeError"):
        check_equality(shared("llama"))


def test_logits_that_are_no_numbers_prove_nothing() -> None:
    model = fresh("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ConfigError, match="differ by nan"):
        check_equality(model)
