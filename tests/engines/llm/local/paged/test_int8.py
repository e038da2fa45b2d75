"""Int8 weights are those of the formula, computed as such, and refused by name."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bfloat16_kit import DTYPES
from tiny_models import fresh, ids_of, own_logits, part, shared, tiny_tokenizer, traced_for

from rag_accel.engines.compiled.compile_process import CompileError
from rag_accel.engines.llm.local.batching.rows import Probe, Runner, SequenceRows
from rag_accel.engines.llm.local.model import loading, runner_choice
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.model.self_check import INT8_BOUND, check_runner
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged import making, topology
from rag_accel.engines.llm.local.paged.int8_weights import Int8Weights, quantised
from rag_accel.engines.llm.local.paged.making import Compilation
from rag_accel.engines.llm.local.paged.runner import PagedRunner
from rag_accel.errors import ConfigError

#: The most by which logits may differ from those of the rounded weights, as a share of the largest:
#: the other factor of each product is rounded, too, when it is computed. In bfloat16 a model's own
#: logits differ by as much with the shape of a batch.
NEAR = {torch.float32: 0.05, torch.bfloat16: 0.12}
IDS = ids_of(60, 1)


def by_formula(model: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the weight that int8 stands for."""
    weight = model.get_parameter(name).detach().float().numpy()
    scale = np.abs(weight).max(axis=1, keepdims=True) / 127
    return np.round(weight / scale).clip(-127, 127) * scale


def rounded_copy(name: str, dtype: torch.dtype) -> Any:
    """Return a model whose products have weights by the formula."""
    model = fresh(name, dtype)
    with torch.no_grad():
        for key in quantised(model):
            rounded = torch.from_numpy(by_formula(model, key))
            model.get_parameter(key).copy_(rounded)
    return model


def int8_runner(model: Any, weights: Int8Weights | None = None) -> PagedRunner:
    topology = traced_for(model)
    weights = weights or Int8Weights("a" * 64, quantised(model))
    return Compilation(model, topology, threads=2, int8=weights).runner(1 << 26)


def logits_of(runner: Runner) -> torch.Tensor:
    return runner.run([part(runner.pool.take(len(IDS)), IDS, 0, len(IDS))])


def share(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much logits differ at most, as a share of the largest."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", ["llama", "qwen3"], ids=["untied", "tied"])
def test_rows_are_those_of_the_formula(name: str) -> None:
    model = shared(name)
    found = quantised(model)
    for key, weight in found.items():
        assert np.abs(weight.widened().numpy() - by_formula(model, key)).max() < 1e-6
        assert int(weight.rows.abs().max()) == 127
    tied = name == "qwen3"
    assert ("model.embed_tokens.weight" in found) is tied
    assert ("lm_head.weight" in found) is not tied
    assert not any("norm" in key for key in found)


def test_a_row_of_zeros_stays_one() -> None:
    model = fresh("llama")
    key = "model.layers.0.mlp.up_proj.weight"
    with torch.no_grad():
        model.get_parameter(key)[3].zero_()
        model.get_parameter(key)[4] = 1e-45  # so small that its scale would be zero
    weight = quantised(model)[key]
    assert not weight.widened()[3:5].any()
    assert weight.widened().isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen3"], ids=["untied", "tied"])
@pytest.mark.cross_product(keep=2)
def test_logits_are_those_of_the_rounded_weights(name: str, dtype: torch.dtype) -> None:
    found = logits_of(int8_runner(shared(name, dtype)))
    expected = own_logits(rounded_copy(name, torch.float32).to(dtype), IDS)
    assert share(found, expected) <= NEAR[dtype]
    assert share(found, own_logits(shared(name, dtype), IDS)) > 1e-4


@pytest.mark.parametrize("name", ["llama", "qwen3"], ids=["untied", "tied"])
def test_nothing_but_the_rounding_of_the_other_factor_is_added(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "INT8_SETTINGS", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0})
    found = logits_of(int8_runner(shared(name)))
    assert share(found, own_logits(rounded_copy(name, torch.float32), IDS)) < 1e-5


def test_a_wrong_weight_is_not_proved() -> None:
    model = shared("qwen3")
    weights = quantised(model)
    check_runner(model, int8_runner(model), share=INT8_BOUND)
    wrong = weights["model.layers.0.self_attn.v_proj.weight"]
    wrong.rows.neg_()
    runner = int8_runner(model, Int8Weights("a" * 64, weights))
    with pytest.raises(ConfigError, match="cannot be proved equal"):
        check_runner(model, runner, share=INT8_BOUND)


def test_the_model_is_not_kept() -> None:
    model = fresh("qwen3")
    watch = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    runner = int8_runner(model)
    del model
    gc.collect()
    assert watch() is None
    assert logits_of(runner).isfinite().all()
    assert runner.identity() == "a" * 64


def test_a_changed_weight_is_another_model() -> None:
    model = fresh("qwen3")
    first = Int8Weights.of(model)
    assert Int8Weights.of(model).identity == first.identity
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
    assert Int8Weights.of(model).identity != first.identity


def test_int8_by_torch_is_refused() -> None:
    with pytest.raises(ConfigError, match="int8 weights are not computed by torch"):
        LocalOptions(weights="int8", runner="torch")
    with pytest.raises(ConfigError, match="unknown weights"):
        LocalOptions(weights="int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("runner", ["auto", "paged"])
def test_without_openvino_int8_is_refused_by_name(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_choice.importlib.util, "find_spec", lambda name: None)
    options = LocalOptions(weights="int8", runner=runner)
    with pytest.raises(ConfigError, match=r"not run with int8 weights(?s:.*)not installed"):
        load(shared("qwen3"), options=options, needs_tokenizer=False)


def test_auto_takes_paged_attention_for_int8_whatever_the_size() -> None:
    loaded = load(
        shared("qwen3"), options=LocalOptions(weights="int8"), needs_tokenizer=False, waits=False
    )
    assert loaded.chosen.name == "paged"
    assert "int8" in loaded.chosen.describe()
    own = load(shared("qwen3"), needs_tokenizer=False)
    assert own.runner.identity() != loaded.runner.identity()


def test_a_refused_runner_is_said_and_no_other_weights_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(spec: Any) -> Any:
        raise CompileError("not on this machine")

    monkeypatch.setattr(topology, "traced", refuse)
    with pytest.raises(ConfigError, match=r"not run with int8 weights(?s:.*)not on this machine"):
        load(shared("qwen3"), options=LocalOptions(weights="int8"), needs_tokenizer=False)


def test_texts_may_be_fused_with_int8_weights() -> None:
    options = LocalOptions(weights="int8", kv_reuse="fused", recompute_layer=1)
    runner = load(shared("qwen3"), options=options, needs_tokenizer=False).runner
    probe = Probe(1, [58, 59])
    span = range(len(IDS))
    lane = runner.pool.take(len(IDS))
    assert lane is not None
    runner.run([SequenceRows(lane, IDS, span, span, (59,), probe=probe)])
    assert float(probe.scores.sum()) == pytest.approx(2.0, abs=1e-3)  # two rows, each of sum 1


def test_what_was_loaded_from_a_folder_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shared("qwen3").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    watches: list[weakref.ref[Any]] = []
    read = loading._loaded

    def watched(*given: Any) -> Any:
        model = read(*given)
        watches.append(weakref.ref(model.model.layers[0].mlp.up_proj.weight))
        return model

    monkeypatch.setattr(loading, "_loaded", watched)
    loaded = loading.load(folder, options=LocalOptions(weights="int8"))
    assert [watch() for watch in watches] == [None]
    found = logits_of(loaded.runner)
    assert share(found, own_logits(shared("qwen3"), IDS)) < INT8_BOUND
