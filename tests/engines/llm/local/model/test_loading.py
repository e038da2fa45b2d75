"""Models come by path, hub name or object; what cannot be run is refused by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import MODELS, fresh, ids_of, own_logits, part, shared, tiny_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rag_accel.engines.llm.local.choice import local_model
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.errors import ConfigError

A = ids_of(30, 1)
SMALL = {"pool_bytes": 1 << 24}
PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a saved model with its tokenizer."""
    shared("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def change_config(folder: Path, **settings: Any) -> None:
    """Write other settings to the configuration of a saved model."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def refusal_of(*args: Any, **options: Any) -> str:
    """Return the message with which a model is refused; it says all that it should."""
    with pytest.raises(ConfigError) as refused:
        load(*args, **SMALL, **options)
    error = refused.value
    assert error.where
    assert error.found is not None
    assert error.valid
    return str(error)


@pytest.mark.parametrize("name", MODELS)
def test_an_object_runs_with_its_own_logits(name: str) -> None:
    loaded = load(shared(name), tiny_tokenizer(), **SMALL)
    found = loaded.runner.run([part(loaded.runner.pool.take(30), A, 0, 30)])
    assert float((found - own_logits(shared(name), A)).abs().max()) <= 1e-5
    assert loaded.is_same()


def test_a_change_of_the_object_is_seen() -> None:
    model = fresh("llama")
    loaded = load(model, tiny_tokenizer(), **SMALL)
    model.to(torch.bfloat16)
    assert not loaded.is_same()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_loaded(folder: Path, kind: Callable[[Path], Any]) -> None:
    loaded = load(kind(folder), **SMALL)
    found = loaded.runner.run([part(loaded.runner.pool.take(30), A, 0, 30)])
    assert float((found - own_logits(shared("llama"), A)).abs().max()) <= 1e-5
    assert loaded.tokenizer.decode([7]) == "7"
    assert (loaded.name, loaded.is_same()) == (str(folder), True)


@pytest.mark.parametrize("spoil", ["written", "cut"])
def test_a_file_that_changes_later_changes_no_loaded_model(folder: Path, spoil: str) -> None:
    loaded = load(folder, **SMALL)
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        if spoil == "cut":
            file.truncate(100)
        else:
            file.seek(size // 4)
            file.write(b"\0" * (size - size // 4))
    found = loaded.runner.run([part(loaded.runner.pool.take(30), A, 0, 30)])
    assert float((found - own_logits(shared("llama"), A)).abs().max()) <= 1e-5


def test_transformers_loads_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaces functions of torch meanwhile, for all threads."""
    real, loading, most = LlamaForCausalLM.from_pretrained, list[int](), list[int]()

    def load_slowly(*args: Any, **options: Any) -> Any:
        loading.append(1)
        most.append(len(loading))
        time.sleep(0.05)
        try:
            return real(*args, **options)
        finally:
            loading.pop()

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", load_slowly)
    with ThreadPoolExecutor(3) as pool:
        for loaded in [pool.submit(load, folder, **SMALL) for _ in range(3)]:
            assert loaded.result(PATIENCE_S).is_same()
    assert max(most) == 1


def test_a_folder_whose_files_changed_is_another_model(folder: Path) -> None:
    before = local_model(str(folder))
    assert local_model(str(folder)) is before
    fresh("llama").save_pretrained(folder)
    change_config(folder, max_position_embeddings=32)
    assert local_model(str(folder)) is not before


def test_a_repetition_penalty_is_read_with_the_model(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.2}')
    assert load(folder, **SMALL).sampling == {"repetition_penalty": 1.2}


def test_a_repetition_penalty_out_of_range_is_refused() -> None:
    model = fresh("llama")
    model.generation_config.repetition_penalty = 0.0
    assert "generation_config.repetition_penalty" in refusal_of(model, tiny_tokenizer())


def test_a_folder_is_loaded_in_another_dtype(folder: Path) -> None:
    loaded = load(folder, dtype="bfloat16", **SMALL)
    assert loaded.runner.pool.keys.dtype is torch.bfloat16


@pytest.mark.parametrize("context", [None, 100])
def test_the_context_is_what_the_model_was_made_for_or_shorter(
    folder: Path, context: int | None
) -> None:
    assert load(folder, context=context, **SMALL).runner.context == (context or 512)


@pytest.mark.parametrize("context", [0, 513])
def test_a_context_the_model_was_not_made_for_is_refused(context: int) -> None:
    message = refusal_of(shared("llama"), tiny_tokenizer(), context=context)
    assert "1 to 512" in message


# What is refused of a folder


def removed(name: str) -> Callable[[Path], Any]:
    """Return what removes a file."""
    return lambda folder: (folder / name).unlink()


def written(name: str, text: str) -> Callable[[Path], Any]:
    """Return what writes a file."""
    return lambda folder: (folder / name).write_text(text)


def changed(**settings: Any) -> Callable[[Path], Any]:
    """Return what changes the configuration."""
    return lambda folder: change_config(folder, **settings)


def rotation(kind: str) -> dict[str, Any]:
    """Return settings of a rotation that changes with length."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, **factors}
    return {"rope_parameters": {**rope, "original_max_position_embeddings": 256}}


def with_pickled_weights(folder: Path) -> None:
    """Give the weights the name of a file that can hold code."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


SUPPORTED = "llama | mistral | qwen2 | qwen3"
DTYPES = "float32 | bfloat16"
FOLDERS: list[tuple[Callable[[Path], Any], list[str]]] = [
    (changed(model_type="gpt2"), ["'gpt2'", SUPPORTED, "transformers 5."]),
    (changed(**rotation("dynamic")), ["rope_type 'dynamic'"]),
    (changed(**rotation("longrope")), ["rope_type 'longrope'"]),
    (changed(quantization_config={"quant_method": "gptq", "bits": 4}), ["quantization_config"]),
    (with_pickled_weights, ["found pytorch_model.bin", "*.safetensors"]),
    (removed("model.safetensors"), ["found no weights"]),
    (written("adapter_config.json", "{}"), ["merge_and_unload"]),
    (written("model.safetensors", "no weights"), ["cannot be loaded"]),
    (changed(num_hidden_layers=4), ["weights are missing"]),
    (changed(dtype="float16"), ["float16", DTYPES]),
    (written("config.json", "{"), ["model"]),
    (written("config.json", "[]"), ["model"]),
    (removed("config.json"), ["configuration cannot be read"]),
    (removed("tokenizer.json"), ["tokenizer.json, tokenizer.model, vocab.json"]),
    (written("tokenizer.json", "{"), ["tokenizer is missing"]),
]


@pytest.mark.parametrize(("spoil", "said"), FOLDERS, ids=[said[0] for _, said in FOLDERS])
def test_a_spoilt_folder(folder: Path, spoil: Callable[[Path], Any], said: list[str]) -> None:
    spoil(folder)
    message = refusal_of(folder)
    assert [text for text in said if text not in message] == []


@pytest.mark.parametrize(
    ("option", "said"),
    [({"dtype": "int8"}, DTYPES), ({"device": "no-such-device"}, "cannot be loaded")],
    ids=str,
)
def test_an_unknown_option(folder: Path, option: dict[str, str], said: str) -> None:
    assert said in refusal_of(folder, **option)


def test_remote_code_is_not_run(folder: Path) -> None:
    (folder / "custom.py").write_text("raise SystemExit('code of the checkpoint ran')")
    names = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    change_config(folder, auto_map=names)
    assert load(folder, **SMALL).runner.vocabulary == 256


@pytest.mark.parametrize("name", ["/no/such/folder", "./no_such_folder", Path("no_such_folder")])
def test_a_folder_that_is_not_there(name: Any) -> None:
    assert "no such folder" in refusal_of(name)


@pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "not a name"])
def test_a_name_that_was_not_fetched_before(name: str) -> None:
    assert "cannot be fetched" in refusal_of(name, local_files_only=True)


def test_a_name_is_found_among_what_was_fetched_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load("owner/model", local_files_only=True, **SMALL).name == "owner/model"
    assert asked["local_files_only"] is True
    assert not {"*.py", "*.bin", "*"} & set(asked["allow_patterns"])


# What is refused of an object


class DerivedModel(LlamaForCausalLM):
    """A class of a user's, which may compute anything."""


class Adapter(torch.nn.Module):
    """A layer put around another, as adapters are."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the inner layer returns."""
        return self.inner(hidden)


def of_another_type() -> Any:
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=256))


def whose_rotation_changes_with_length() -> Any:
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    heads = ("num_attention_heads", "num_key_value_heads")
    sizes: Any = {name: getattr(shared("llama").config, name) for name in (*kept, *heads)}
    return LlamaForCausalLM(LlamaConfig(**sizes, **rotation("dynamic")))


def with_an_adapter() -> Any:
    model = fresh("llama")
    layer = model.model.layers[1].self_attn
    layer.q_proj = Adapter(layer.q_proj)
    return model


def with_a_hook() -> Any:
    model = fresh("llama")
    model.model.norm.register_forward_hook(lambda *_: None)
    return model


def with_another_forward() -> Any:
    model = fresh("llama")
    model.model.norm.forward = lambda hidden: hidden
    return model


def of_two_dtypes() -> Any:
    model = fresh("llama")
    model.lm_head.to(torch.bfloat16)
    return model


def whose_weights_count_no_changes() -> Any:
    with torch.inference_mode():
        return fresh("llama")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (object, "not run here"),
        (int, "not run here"),
        (lambda: None, "not run here"),
        (of_another_type, "'gpt2'"),
        (lambda: DerivedModel(shared("llama").config), "DerivedModel"),
        (whose_rotation_changes_with_length, "rope_type 'dynamic'"),
        (with_an_adapter, "Adapter"),
        (with_a_hook, "hooks"),
        (with_another_forward, "methods put over"),
        (lambda: fresh("llama", torch.float16), "float16"),
        (of_two_dtypes, "bfloat16, float32"),
        (lambda: fresh("llama").to("meta"), "meta"),
        (whose_weights_count_no_changes, "could not be noticed"),
    ],
)
def test_an_object_that_cannot_be_run(make: Callable[[], Any], said: str) -> None:
    assert said in refusal_of(make(), tiny_tokenizer())


@pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"device": "cuda"}], ids=str)
def test_an_object_is_not_converted(option: dict[str, str]) -> None:
    assert "keeps its" in refusal_of(shared("llama"), tiny_tokenizer(), **option)


@pytest.mark.parametrize("tokenizer", [None, str.split], ids=["none", "function"])
def test_an_object_without_its_tokenizer(tokenizer: Any) -> None:
    assert "tokenizer is missing" in refusal_of(shared("llama"), tokenizer)


def test_a_tokenizer_with_more_tokens_than_the_model() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["more"])
    assert "257 tokens" in refusal_of(shared("llama"), tokenizer)


def test_a_pool_too_small_for_a_token() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        load(shared("llama"), tiny_tokenizer(), pool_bytes=10)
