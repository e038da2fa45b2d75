"""Devices that a user lists as embedders by their names: the list's model, computed there too."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_accel.config import EmbeddingRuntime
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engine_api import Engine

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?")


def is_device(given: Any) -> bool:
    """Tell whether this names a device, such as ``cuda:0``."""
    return isinstance(given, str) and _DEVICE.fullmatch(given) is not None


def device_name(given: str) -> str:
    """Return the one name of a device: ``cuda`` is ``cuda:0``."""
    kind, _, number = given.partition(":")
    return kind if kind == "cpu" else f"{kind}:{number or 0}"


def is_sentence_transformer(given: Any) -> bool:
    """Tell whether this is a model of sentence-transformers, without importing it."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(given, library.SentenceTransformer)


def engine_on(device: str, others: Sequence[Any], runtime: EmbeddingRuntime) -> Engine:
    """Return an engine on a device, with the model of the first other that has one.

    Args:
        device: its name.
        others: what else is listed: a model object is copied, a model's name loaded again; without
            any the packaged model is loaded.
        runtime: as of ``SentenceTransformerEngine``.

    Raises:
        ConfigError: there is no such device here, or the model cannot be put on it.
        ImportError: sentence-transformers or the packaged model is missing.
    """
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    _require(device)
    model = _model_of(others)
    try:
        if model is not None and not isinstance(model, str):
            model = copy.deepcopy(model).to(device)
        return SentenceTransformerEngine(model, device=device, runtime=runtime)
    except (RuntimeError, OSError, MemoryError) as error:
        raise _refusal("a model cannot be put on a device", device, error) from error


def _model_of(others: Sequence[Any]) -> Any:
    for one in others:
        model = one if is_sentence_transformer(one) else getattr(one, "model", None)
        if isinstance(model, str) or is_sentence_transformer(model):
            return model
    return None


def _require(device: str) -> None:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return  # what loads the model names the extra
    try:
        torch.empty(1, device=device)
    except Exception as error:  # each backend raises its own
        raise _refusal("a device of a list of embedders is not there", device, error) from error


def _refusal(what: str, device: str, error: Exception) -> ConfigError:
    torch: Any = importlib.import_module("torch")
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return ConfigError(
        what,
        where=device,
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        valid=", ".join(there),
        hint="leave the device out of the list, or make it visible to this process",
    )
