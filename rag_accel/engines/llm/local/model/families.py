"""The models that can be run by packed rows, and the refusal of others by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.errors import ConfigError

#: The class of each supported ``model_type``. They differ in what stands between their matrix
#: products, such as norms of queries and keys, which is their own code; all call one attention
#: function with queries and keys rotated, and say the window of each layer.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: Rotations that are the same however long a sequence becomes.
ROTATIONS = ("default", "linear", "llama3", "yarn")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")
_MODULES = ("torch.nn.modules.", "transformers.activations", "transformers.models.")


def transformers_version() -> str:
    """Return the name and version of the library whose models are run."""
    return f"transformers {importlib.import_module('transformers').__version__}"


def refusal(what: str, *, found: object, valid: str, hint: str) -> ConfigError:
    """Return the error of a model that is not run, with the version of transformers."""
    where = f"model, with {transformers_version()}"
    return ConfigError(what, where=where, found=found, valid=valid, hint=hint)


def check_type(model_type: object) -> str:
    """Return the name of the class for a ``model_type``.

    Raises:
        ConfigError: the type is not supported.
    """
    if model_type not in FAMILIES:
        raise refusal(
            "this type of model is not run here",
            found=repr(model_type),
            valid=" | ".join(FAMILIES),
            hint="serve it elsewhere and use the remote engine",
        )
    return FAMILIES[str(model_type)]


def check_config(config: Any) -> None:
    """Check that a configuration of transformers describes a supported computation.

    Raises:
        ConfigError: the type is not supported, positions are rotated by length, or weights are
            quantised.
    """
    check_type(config.model_type)
    rotation = (config.rope_parameters or {}).get("rope_type", "default")
    if rotation not in ROTATIONS:
        raise refusal(
            "the rotation of positions changes with a sequence's length",
            found=f"rope_type {rotation!r}",
            valid=" | ".join(ROTATIONS),
            hint="set a fixed rotation in the configuration, or use the remote engine",
        )
    if getattr(config, "quantization_config", None) is not None:
        raise refusal(
            "quantised weights are not run here",
            found="quantization_config",
            valid=" | ".join(DTYPES),
            hint="load the checkpoint that was not quantised",
        )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model's keys, values and logits.

    Args:
        layers: the number of layers.
        heads: the key and value heads of a layer.
        dim: the components of a head.
        context: the most tokens that it was made for.
        vocabulary: the number of logits of a row.
    """

    layers: int
    heads: int
    dim: int
    context: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Return the shape that a configuration of a supported family describes."""
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_key_value_heads,
            dim=dim,
            context=config.max_position_embeddings,
            vocabulary=config.vocab_size,
        )


def has_windows(model: Any) -> bool:
    """Tell whether any layer of a model sees only a window of positions."""
    return getattr(model.config, "sliding_window", None) is not None


def check_paths(model: Any) -> None:
    """Check that the tokens of a model see all of what they depend on.

    Raises:
        ConfigError: a layer sees a window of positions only.
    """
    if has_windows(model):
        raise refusal(
            "a model with a sliding window does not compute relation paths as a tree",
            found=f"sliding_window={model.config.sliding_window}",
            valid="a model whose tokens see all before them",
            hint='leave kv_reuse="dependency" out: prompts are then computed as they stand',
        )


def narrow_windows(model: Any, window: int) -> None:
    """Make the windows of a copy so narrow that short prompts pass them."""
    model.config.sliding_window = window
    for module in model.modules():
        if getattr(module, "sliding_window", None) is not None:
            module.sliding_window = window


def check_model(model: Any) -> None:
    """Check that a model object is what its library made of a checkpoint, and nothing else.

    Raises:
        ConfigError: its class, its modules, weights, dtype or device are not those that can be
            copied and run.
    """
    transformers = importlib.import_module("transformers")
    name = check_type(getattr(getattr(model, "config", None), "model_type", None))
    if type(model) is not getattr(transformers, name):
        raise refusal(
            "only a model's own class is run",
            found=f"{type(model).__module__}.{type(model).__qualname__}",
            valid=f"transformers.{name}",
            hint="merge adapters (merge_and_unload) and hand over the model inside",
        )
    check_config(model.config)
    _check_modules(model.modules())
    _check_weights(model)


def _check_modules(modules: Iterable[torch.nn.Module]) -> None:
    for kind in dict.fromkeys(map(type, modules)):
        if not kind.__module__.startswith(_MODULES):
            raise refusal(
                "the model has modules that its library did not make",
                found=f"{kind.__module__}.{kind.__qualname__}",
                valid="the modules of transformers",
                hint="merge adapters (merge_and_unload), or load the model by its path",
            )


def _check_weights(model: Any) -> None:
    weights = list(model.parameters())
    kinds = {type(weight).__qualname__ for weight in weights} - {"Parameter"}
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights}
    devices = {str(weight.device) for weight in weights}
    if kinds:
        raise _unusable("weights of another kind are not run here", kinds, "Parameter")
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        raise _unusable("weights have one dtype", dtypes, " | ".join(DTYPES))
    if len(devices) > 1 or weights[0].device.type not in DEVICES:
        raise _unusable("weights are on one device", devices, " | ".join(DEVICES))


def _unusable(what: str, found: set[str], valid: str) -> ConfigError:
    hint = "load it as one of these, on one device, without quantisation"
    return refusal(what, found=", ".join(sorted(found)), valid=valid, hint=hint)
