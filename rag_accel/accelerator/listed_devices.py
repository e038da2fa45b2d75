"""Devices that a user lists as embedders by their names: the list's model, computed there too."""

from __future__ import annotations

import copy
import importlib
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_accel.config import EmbeddingRuntime, Options
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engine_api import Engine
    from rag_accel.engines.devices.members import Member

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

    require_device(device)
    model = _model_of(others)
    try:
        if model is not None and not isinstance(model, str):
            model = copy.deepcopy(model).to(device)
        return SentenceTransformerEngine(model, device=device, runtime=runtime)
    except (RuntimeError, OSError, MemoryError) as error:
        raise _refusal("a model cannot be put on a device", device, error) from error


def take_any_model(given: Sequence[Any]) -> bool:
    """Tell whether all that is listed computes whichever model it is given: it names none."""
    return bool(given) and all(is_device(entry) or _is_process(entry) for entry in given)


def _is_process(given: Any) -> bool:
    process = sys.modules.get("rag_accel.engines.devices.process")
    return (
        process is not None and isinstance(given, process.ProcessMember) and given.takes_any_model
    )


class CopiedModel:
    """A program's model, on the devices and in the processes of a list.

    On its own device it is the object itself, elsewhere a copy. Processes load it from a folder
    that only this user may read, and that is there until ``close``.

    Args:
        encoding: the model and its arguments of ``encode``.
        options: as of ``device_group``.
    """

    def __init__(self, encoding: ModelEncoding, options: Options) -> None:
        self._encoding = encoding
        self._options = options
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def member(self, given: Any) -> Member | None:
        """Return a member that computes the model where ``given`` says; None if that is no place.

        Raises:
            ConfigError: the model cannot be put there.
        """
        from rag_accel.engines.devices.members import EngineMember

        if is_device(given):
            return EngineMember(self._engine(given), max_texts=self._options.max_batch)
        if _is_process(given):
            return given.with_model(self._saved(), self._encoding)
        return None

    def close(self) -> None:
        """Delete the folder."""
        if self._folder is not None:
            self._folder.cleanup()

    def _engine(self, device: str) -> Engine:
        model = self._encoding.model
        if device_name(device) == device_name(str(model.device)):
            return self._encoding.engine(self._options)
        require_device(device)
        try:
            copied = copy.deepcopy(model).to(device)
            return self._encoding.engine(self._options, copied)
        except (RuntimeError, OSError, MemoryError) as error:
            raise _refusal("a model cannot be put on a device", device, error) from error

    def _saved(self) -> str:
        if self._folder is None:
            folder = tempfile.TemporaryDirectory(prefix="rag-accel-model-")
            self._folder = folder
            self._encoding.model.save_pretrained(folder.name, create_model_card=False)
        return self._folder.name


def _model_of(others: Sequence[Any]) -> Any:
    for other in others:
        model = other if is_sentence_transformer(other) else getattr(other, "model", None)
        if isinstance(model, str) or is_sentence_transformer(model):
            return model
    return None


def require_device(device: str) -> None:
    """Raise a ConfigError unless a device is there, as far as its library can tell."""
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
