"""Int8 weights are those of the formula, computed and kept as such, and refused by name."""

from __future__ import annotations

import errno
import gc
import os
import stat
import weakref
from collections.abc import Callable
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
from rag_accel.engines.llm.local.model.runner import states_identity
from rag_accel.engines.llm.local.model.self_check import INT8_BOUND, check_runner
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged import int8_weights as int8_module
from rag_accel.engines.llm.local.paged import making, topology
from rag_accel.engines.llm.local.paged.int8_weights import (
    Int8Rows,
    Int8Weights,
    int8_identity,
    int8_weights,
    list_weights,
    purge_weights,
    quantised,
    weights_folder,
)
from rag_accel.engines.llm.local.paged.making import Compilation
from rag_accel.engines.llm.local.paged.runner import PagedRunner
from rag_accel.errors import ConfigError, WeightsFileError
from rag_accel.kv.folder import ChunkFolder

LIMIT = 1 << 24
#: The most by which logits may differ from those of the rounded weights, as a share of the largest:
#: the other factor of each product is rounded, too, when it is computed. In bfloat16 a model's own
#: logits differ by as much with the shape of a batch.
NEAR = {torch.float32: 0.05, torch.bfloat16: 0.12}
IDS = ids_of(60, 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of int8 weights in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return weights_folder()


@pytest.fixture
def weights_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give int8 weights a folder of the test's own, and traces the machine's."""
    monkeypatch.setattr(int8_module, "user_cache", lambda: tmp_path)


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


def kept_again(monkeypatch: pytest.MonkeyPatch, model: Any) -> Int8Weights:
    """Return the weights of a second start, which may not round any."""

    def refuse(weight: torch.Tensor) -> Any:
        raise AssertionError("rounded again")

    with monkeypatch.context() as patched:
        patched.setattr(Int8Rows, "of", refuse)
        return int8_weights(model, "tiny", LIMIT)


def test_a_second_start_reads_what_the_first_has_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = int8_weights(shared("qwen3"), "tiny", LIMIT)
    second = kept_again(monkeypatch, shared("qwen3"))
    assert second.identity == first.identity
    assert second.rows.keys() == first.rows.keys()
    for key, weight in second.rows.items():
        assert torch.equal(weight.rows, first.rows[key].rows)
        assert torch.equal(weight.scales, first.rows[key].scales)
    (kept,) = list_weights()
    assert (kept.model, kept.path.parent) == ("tiny", cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert not list(cache.glob("*.tmp"))


def test_a_changed_weight_is_another_model(cache: Path) -> None:
    model = fresh("qwen3")
    first = int8_weights(model, "tiny", LIMIT)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
    second = int8_weights(model, "tiny", LIMIT)
    assert second.identity != first.identity
    assert len(list_weights()) == 2


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5000] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def link(file: Path) -> None:
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def lengthen_header(file: Path) -> None:
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])


def renew(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"version": 1', b'"version": 9', 1))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flip, "another checksum"),
        (cut, "bytes"),
        (link, "a link"),
        (lengthen_header, "no header"),
        (renew, "version 9"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_file_that_was_changed_is_named_and_made_again(
    harm: Callable[[Path], None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = shared("qwen3")
    first = int8_weights(model, "tiny", LIMIT)
    (kept,) = list_weights()
    harm(kept.path)
    second = int8_weights(model, "tiny", LIMIT)
    assert "RA508" in caplog.text or "kept int8 weights cannot be used" in caplog.text
    assert said in caplog.text
    assert not kept.path.is_symlink()
    for found in (second, kept_again(monkeypatch, model)):
        for key, weight in found.rows.items():
            assert torch.equal(weight.rows, first.rows[key].rows)


def test_the_file_of_another_folder_is_foreign(cache: Path, tmp_path: Path) -> None:
    model = shared("qwen3")
    int8_weights(model, "tiny", LIMIT)
    (kept,) = list_weights()
    content = kept.path.read_bytes()
    cache.rename(tmp_path / "elsewhere")  # and with it the secret
    folder = ChunkFolder(cache)
    file = folder.path / kept.path.name
    file.write_bytes(content)
    identity = int8_identity(states_identity(model))
    with pytest.raises(WeightsFileError, match="another checksum"):
        int8_module._read(folder, file, model, identity)


@pytest.mark.parametrize("mode", [0o755, None], ids=["open to others", "a link"])
def test_a_folder_that_does_not_fit_is_not_used(
    mode: int | None, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir(parents=True)
    if mode is None:
        (tmp_path / "other").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "other")
    else:
        cache.mkdir()
        cache.chmod(mode)
    assert int8_weights(shared("qwen3"), "tiny", LIMIT).rows
    assert "int8 weights are not kept" in caplog.text
    assert not list(cache.glob("*.int8"))


def test_where_nothing_can_be_written_it_goes_on(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(int8_module, "replaced_file", refuse)
    assert int8_weights(shared("qwen3"), "tiny", LIMIT).rows
    assert "Read-only file system" in caplog.text
    cache.rename(cache.with_name("gone"))
    cache.parent.joinpath("int8").write_text("a file in its place")
    assert int8_weights(shared("qwen3"), "tiny", LIMIT).rows


def test_the_least_recently_used_goes_first(cache: Path) -> None:
    sizes: dict[str, int] = {}
    for at, name in enumerate(("llama", "qwen2", "qwen3")):
        int8_weights(shared(name), name, LIMIT)
        (kept,) = (kept for kept in list_weights() if kept.model == name)
        sizes[name] = kept.size
        os.utime(kept.path, (at, at))
    assert purge_weights("qwen3") == 1
    int8_weights(shared("llama"), "llama", LIMIT)  # used now
    assert [kept.model for kept in list_weights()] == ["qwen2", "llama"]
    int8_weights(shared("qwen3"), "qwen3", sizes["llama"] + sizes["qwen3"])
    assert [kept.model for kept in list_weights()] == ["llama", "qwen3"]
    assert purge_weights("llama") == 1
    int8_weights(shared("llama"), "llama", 100)  # has no room at all
    int8_weights(shared("llama"), "llama", 0)
    assert [kept.model for kept in list_weights()] == ["qwen3"]
    (cache / ("0" * 64 + ".int8")).write_bytes(b"broken")
    assert purge_weights("no such") == 1
    assert purge_weights() == 1
    assert list_weights() == []


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


@pytest.mark.usefixtures("weights_apart")
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


@pytest.mark.usefixtures("weights_apart")
def test_texts_may_be_fused_with_int8_weights() -> None:
    options = LocalOptions(weights="int8", kv_reuse="fused", recompute_layer=1)
    runner = load(shared("qwen3"), options=options, needs_tokenizer=False).runner
    probe = Probe(1, [58, 59])
    span = range(len(IDS))
    lane = runner.pool.take(len(IDS))
    assert lane is not None
    runner.run([SequenceRows(lane, IDS, span, span, (59,), probe=probe)])
    assert float(probe.scores.sum()) == pytest.approx(2.0, abs=1e-3)  # two rows, each of sum 1


@pytest.mark.usefixtures("weights_apart")
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
