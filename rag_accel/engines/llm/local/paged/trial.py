"""The trial of the operator on a small model of the same shapes, before the user's is run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rag_accel.engines.llm.local.model.families import DTYPES
from rag_accel.engines.llm.local.model.self_check import WINDOW, check_runner
from rag_accel.engines.llm.local.paged.making import Compilation
from rag_accel.engines.llm.local.paged.tracing import trace

_LAYERS, _VOCABULARY = 2, 256
_THREADS, _POOL_BYTES = 2, 1 << 26
_FILE = "trial.xml"


def try_operator(spec: Mapping[str, Any], folder: Path) -> None:
    """Run a model of two layers with random weights by the operator, and compare it with torch.

    Args:
        spec: of the whole model, see ``tracing.trace``.
        folder: for what is traced here.

    Raises:
        ConfigError: the operator computes something else.
    """
    transformers = importlib.import_module("transformers")
    small = {**spec, "config": _reduced(spec["config"])}
    config = getattr(transformers, spec["config_class"]).from_dict(small["config"])
    torch.manual_seed(0)
    model = getattr(transformers, spec["class"])._from_config(config, dtype=torch.float32)
    model = model.to(DTYPES[spec["dtype"]]).eval()
    path = folder / _FILE
    trace(small, path)
    compilation = Compilation(model, path, threads=_THREADS, probed=_LAYERS - 1)
    check_runner(model, compilation.runner(_POOL_BYTES), probed=_LAYERS - 1)
    for left in folder.glob(f"{path.stem}.*"):
        left.unlink()


def _reduced(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of few layers and tokens, all else as it is."""
    reduced = {**config, "num_hidden_layers": _LAYERS, "vocab_size": _VOCABULARY}
    if config.get("sliding_window") is not None:
        reduced["sliding_window"] = WINDOW  # so narrow that short prompts pass it
    if config.get("layer_types") is not None:
        reduced["layer_types"] = _kinds(config["layer_types"])
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        reduced[name] = None
    return reduced


def _kinds(kinds: list[str]) -> list[str]:
    """Return the kinds of two layers, of which there are both where the model has both."""
    found = list(dict.fromkeys(kinds))[:_LAYERS]
    return [found[at % len(found)] for at in range(_LAYERS)]
