"""The loading of language models by path, hub name or object, with their proof."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rag_accel.engines.embedding.same_model import ModelWatch
from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.model.families import (
    DTYPES,
    ModelShape,
    check_config,
    check_model,
    check_paths,
    check_type,
    refusal,
)
from rag_accel.engines.llm.local.model.proofs import checkpoint_digest
from rag_accel.engines.llm.local.model.runner_choice import ChosenRunner, Source, choose_runner
from rag_accel.engines.llm.local.model.shared_weights import always
from rag_accel.engines.llm.local.model.used_settings import UsedSettings
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.system.files import model_files
from rag_accel.system.locks import RenewedLock
from rag_accel.system.memory import return_freed_memory

#: transformers replaces functions of torch while it loads, for all threads: two loads at once would
#: restore them in the wrong order, and models made later have other weights than they should
_loading = RenewedLock()

DEFAULT_OPTIONS = LocalOptions()
#: What is fetched from the hub: no code, and no weights that can hold code.
_FETCHED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
#: One of these is what a tokenizer is made of.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A language model that was proved to run here.

    Args:
        chosen: what computes rows of sequences, and why that.
        tokenizer: the model's own.
        name: where it came from.
        config: the model's configuration.
        settings: the used settings of it and the tokenizer, as they were then.
        is_same: tells whether a model object is still what was copied; from any thread.
    """

    chosen: ChosenRunner
    tokenizer: Any
    name: str
    config: Any
    settings: UsedSettings
    is_same: Callable[[], bool] = always

    @property
    def runner(self) -> Runner:
        """Return what computes rows of sequences."""
        return self.chosen.runner

    @property
    def ends(self) -> frozenset[int]:
        """Return the tokens that end a completion."""
        return self.settings.ends

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Return the sampling options of the model's generation configuration."""
        return self.settings.sampling


def load(
    model: Any,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    context: int | None = None,
    pool_bytes: int | None = None,
    options: LocalOptions = DEFAULT_OPTIONS,
    revision: str | None = None,
    local_files_only: bool = False,
    needs_tokenizer: bool = True,
    waits: bool = True,
) -> LoadedModel:
    """Return a model, loaded if it is named, that was proved to run here.

    Only safetensors are read and no remote code is run. A model object is left as it is: what
    runs is a copy that shares its weights.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers.
        tokenizer: the tokenizer of a model object; for a named one, another than its own.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.
        device: where a named model is loaded to; None for the CPU.
        context: the most tokens of a sequence; None for what the model was made for.
        pool_bytes: the most bytes of keys and values; None for those of the options.
        options: name the runner, its threads, and whether attention is recorded.
        revision: of a name on the hub.
        local_files_only: whether nothing is asked of the hub, as when it is offline.
        needs_tokenizer: whether a model object must come with one.
        waits: whether to wait some ten seconds for a model to be traced, once a machine; else it
            runs on torch meanwhile.

    Raises:
        ConfigError: the model is not supported, not there, or was not proved equal.
        ImportError: transformers is missing; names the extra.
    """
    _need_transformers()
    if isinstance(model, str | Path):
        folder = _folder(model, revision, local_files_only)
        before = list(model_files(folder))
        source, name, is_same = _loaded(folder, dtype, device), str(model), always
        digest = checkpoint_digest(folder)
        if list(model_files(folder)) != before:  # it may not be that of what was loaded
            digest = None
        tokenizer = tokenizer if tokenizer is not None else _tokenizer(folder)
    else:
        source, is_same, digest = _checked(model, dtype, device), _watched(model), None
        name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    if needs_tokenizer:
        _check_tokenizer(tokenizer, source.config.vocab_size)
    if options.reuses_paths:
        check_paths(source)
    _check_context(source, context)
    chosen = choose_runner(
        Source(source, digest, is_same),
        options if pool_bytes is None else replace(options, pool_bytes=pool_bytes),
        context=context,
        waits=waits,
    )
    settings = UsedSettings.of(source, tokenizer)
    config = source.config
    if options.weights != "own" and is_same is always:
        del source  # nothing else has the model's own weights
        return_freed_memory()
    return LoadedModel(chosen, tokenizer, name, config, settings, is_same)


def load_source(model: str | Path, dtype: str | None = None) -> tuple[Any, Any]:
    """Return a named model as transformers computes it, and its tokenizer; both checked as by load.

    It is in evaluation mode, on the CPU, and its weights can be trained.

    Args:
        model: a folder, or a name on the hub.
        dtype: ``float32`` or ``bfloat16``; None for that of the checkpoint.

    Raises:
        ConfigError: the model is not supported, or not there.
        ImportError: transformers is missing; names the extra.
    """
    _need_transformers()
    folder = _folder(model, None, False)
    source, tokenizer = _loaded(folder, dtype, None), _tokenizer(folder)
    _check_tokenizer(tokenizer, source.config.vocab_size)
    return source, tokenizer


def _need_transformers() -> None:
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "a language model on this machine needs transformers: pip install 'rag-accel[local]'"
        ) from error


def _check_context(source: Any, context: int | None) -> None:
    most = ModelShape.of(source.config).context
    if context is not None and not 1 <= context <= most:
        raise ConfigError(
            "the context is not one that the model was made for",
            where="context",
            found=context,
            valid=f"1 to {most}",
        )


def _checked(model: Any, dtype: str | None, device: str | None) -> Any:
    check_model(model)
    own = {"dtype": str(model.dtype).removeprefix("torch."), "device": str(model.device)}
    for name, wanted in {"dtype": dtype, "device": device}.items():
        if wanted is not None and wanted not in (own[name], own[name].partition(":")[0]):
            raise ConfigError(
                f"a model object keeps its {name}",
                where=name,
                found=wanted,
                valid=own[name],
                hint="convert the model before, or load it by its path",
            )
    return model


def _watched(model: Any) -> Callable[[], bool]:
    try:
        is_same = ModelWatch(model).is_same
    except RuntimeError as error:
        raise refusal(
            "changes of the model's weights could not be noticed",
            found=str(error),
            valid="weights that were made outside inference mode",
            hint="load the model outside inference mode",
        ) from error
    if not is_same():  # which it is not while other code than that of its classes runs
        raise refusal(
            "the model runs other code than its own",
            found="hooks, or methods put over those of its modules",
            valid="a model without them",
            hint="remove them, or load the model by its path",
        )
    return is_same


def _folder(name: str | Path, revision: str | None, local_files_only: bool) -> Path:
    """Return the folder of a checkpoint, fetched from the hub if it is a name there."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if isinstance(name, Path) or path.is_absolute() or str(name).startswith((".", "~")):
        raise _missing("there is no such folder", str(path))
    hub = importlib.import_module("huggingface_hub")
    try:
        fetched = hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_FETCHED),
            ignore_patterns=["*/*"],
            local_files_only=local_files_only,
        )
    except Exception as error:  # of a name that cannot be one, and of the network in any way
        raise _missing("the model cannot be fetched", f"{name}: {error}") from error
    return Path(fetched)


def _missing(what: str, found: str) -> ConfigError:
    return ConfigError(
        what,
        where="model",
        found=found,
        valid="a folder with config.json and safetensors, or a name on the hub",
        hint="offline, only what was fetched before is found: give the folder's path",
    )


def _loaded(folder: Path, dtype: str | None, device: str | None) -> Any:
    transformers = importlib.import_module("transformers")
    settings = _settings(folder)
    model_class = getattr(transformers, check_type(settings.get("model_type")))
    _check_files(folder)
    try:
        config = model_class.config_class.from_pretrained(folder)
        check_config(config)
        with _loading.lock:
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                dtype=_dtype(dtype, config.dtype),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        model = model.to(device or "cpu")
    except ConfigError:
        raise
    except Exception as error:  # of files that are damaged in any way, and of a missing device
        raise _missing("the model cannot be loaded", f"{type(error).__name__}: {error}") from error
    if report["missing_keys"]:
        raise _missing("weights are missing", ", ".join(sorted(report["missing_keys"])[:4]))
    check_model(model)
    _own_weights(model)
    return model.eval()


@torch.no_grad()
def _own_weights(model: Any) -> None:
    """Copy weights that are mapped from files: those may be written or cut while the model runs."""
    for weights in model.parameters():
        weights.data = weights.data.clone()


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _missing("the configuration cannot be read", f"{folder}: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _check_files(folder: Path) -> None:
    if (folder / "adapter_config.json").exists():
        raise refusal(
            "a model with an adapter is not run here",
            found="adapter_config.json",
            valid="weights with the adapter merged",
            hint="merge it (merge_and_unload), save the model and give that folder",
        )
    if not any(folder.glob("*.safetensors")):
        weights = [file.name for kind in ("*.bin", "*.pt", "*.gguf") for file in folder.glob(kind)]
        raise refusal(
            "only weights in safetensors are read",
            found=", ".join(sorted(weights)) or "no weights",
            valid="*.safetensors",
            hint="load it with transformers, save it again and give that folder",
        )


def _dtype(wanted: str | None, own: torch.dtype | None) -> torch.dtype:
    name = wanted or str(own or torch.float32).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(
            "the model is not run in this dtype",
            where="dtype",
            found=name,
            valid=" | ".join(DTYPES),
            hint="name one of these to convert the weights",
        )
    return DTYPES[name]


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).exists() for name in _VOCABULARIES):
        raise _no_tokenizer(f"none of {', '.join(_VOCABULARIES)} in {folder}")
    loader = importlib.import_module("transformers").AutoTokenizer
    try:
        return loader.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # of files that are damaged in any way
        raise _no_tokenizer(f"{type(error).__name__}: {error}") from error


def _check_tokenizer(tokenizer: Any, vocabulary: int) -> None:
    kind = importlib.import_module("transformers").PreTrainedTokenizerBase
    if not isinstance(tokenizer, kind):
        raise _no_tokenizer(type(tokenizer).__name__)
    if len(tokenizer) > vocabulary:
        raise ConfigError(
            "the tokenizer is not that of the model",
            where="tokenizer",
            found=f"{len(tokenizer)} tokens",
            valid=f"at most the model's vocabulary of {vocabulary}",
            hint="resize the model's embeddings, or give the tokenizer it was made with",
        )


def _no_tokenizer(found: str) -> ConfigError:
    return ConfigError(
        "the model's tokenizer is missing",
        where="tokenizer",
        found=found,
        valid="a tokenizer of transformers for this model",
        hint="save it to the model's folder, or give it as tokenizer",
    )
