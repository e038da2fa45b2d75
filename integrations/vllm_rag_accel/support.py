"""The engines and models whose states can be reused, and the refusal of others by name."""

from __future__ import annotations

from typing import Any

import torch

from rag_accel.errors import ConfigError
from rag_accel.kv.rotation import rotation_frequencies


def text_config(config: Any) -> Any:
    """Return transformers' configuration of an engine's language model."""
    return config.model_config.hf_text_config


def rotation_frequencies_of(config: Any) -> torch.Tensor:
    """Return the frequencies of the rotation of an engine's model.

    Raises:
        ConfigError: they depend on the length, or differ between layers.
    """
    settings = text_config(config)
    frequencies = rotation_frequencies(settings)
    if frequencies is None:
        found = getattr(settings, "rope_parameters", None)
        raise _refused(
            "keys cannot be moved to other positions", found, "one rotation, all lengths"
        )
    return frequencies


def check_engine(config: Any, cache: Any) -> None:
    """Check that an engine computes states that can be kept and moved.

    Args:
        config: vLLM's ``VllmConfig``.
        cache: its ``KVCacheConfig``; None where it is not known yet.

    Raises:
        ConfigError: it does not.
    """
    model, settings = config.model_config, text_config(config)
    dtype = config.cache_config.cache_dtype
    parallel = config.parallel_config
    policy = config.kv_transfer_config.kv_load_failure_policy
    kinds = set(getattr(settings, "layer_types", None) or ())
    window = getattr(settings, "sliding_window", None)
    uses_window = bool(kinds - {"full_attention"}) if kinds else window is not None
    found: list[tuple[bool, str, object, str]] = [
        (dtype != "auto", "keys and values are kept in another dtype", dtype, "auto"),
        (model.use_mla, "the model compresses keys and values (MLA)", "MLA", "full attention"),
        (model.uses_mrope, "positions have several dimensions (M-RoPE)", "M-RoPE", "one position"),
        (uses_window, "the model attends to a window", kinds or window, "full attention"),
        (
            parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1,
            "the model is split over several workers",
            (parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
            "one worker",
        ),
        (
            getattr(config, "speculative_config", None) is not None,
            "a draft model keeps states of its own",
            "speculative_config",
            "none",
        ),
        (
            cache is not None and len(cache.kv_cache_groups) != 1,
            "layers keep states in several groups",
            len(cache.kv_cache_groups) if cache is not None else 0,
            "one group",
        ),
        (
            getattr(settings, "rope_interleaved", False)
            or getattr(settings, "partial_rotary_factor", 1.0) not in (None, 1.0),
            "the model rotates keys in another way",
            "interleaved or partial rotation",
            "halves of whole heads",
        ),
    ]
    for is_refused, what, value, valid in found:
        if is_refused:
            raise _refused(what, value, valid)
    if policy != "recompute":
        raise ConfigError(
            "a text whose kept state is gone would end its request",
            where="--kv-transfer-config, kv_load_failure_policy",
            found=repr(policy),
            valid="recompute",
            hint='add "kv_load_failure_policy": "recompute"',
        )


def check_blocks(config: Any, found: int) -> None:
    """Check that the attention backend has the blocks that the scheduler gives out.

    Args:
        config: vLLM's ``VllmConfig``.
        found: tokens of a block of the backend's cache.

    Raises:
        ConfigError: it divides them.
    """
    if found != config.cache_config.block_size:
        valid = f"--block-size {found}, or another --attention-backend"
        raise _refused("the attention backend has blocks of its own", f"{found} tokens", valid)


def _refused(what: str, found: object, valid: str) -> ConfigError:
    return ConfigError(
        f"the states of texts cannot be reused: {what}",
        where="vllm_rag_accel, the engine's configuration",
        found=found,
        valid=valid,
        hint="start vLLM without --kv-transfer-config, or serve another model",
    )
