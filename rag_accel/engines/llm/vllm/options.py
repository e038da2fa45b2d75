"""The bounds of a language model that vLLM runs, each named once, and the command of its server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.local.options import CHUNK_BYTES, DISK_BYTES, RECOMPUTE_RATIO
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.engines.option_checks import check_least, check_whole
from rag_accel.errors import ConfigError
from rag_accel.kv.keys import KvRecipe
from rag_accel.kv.reuse_request import ServedReuse

_LEAST_HANDED = 64
#: Arguments of vLLM's engine and server that other options stand for.
_SET_HERE: Mapping[str, str] = {
    "model": "the model",
    "dtype": "dtype",
    "chat_template": "chat_template",
    "max_num_seqs": "max_requests",
    "kv_cache_memory_bytes": "pool_bytes",
    "kv_transfer_config": "kv_reuse and kv_folder",
    "worker_cls": "kv_reuse",
    **dict.fromkeys(
        ("scheduling_policy", "served_model_name", "host", "port", "uds", "api_key"),
        "nothing: the server is this process's own",
    ),
}
#: A request that names no temperature asks for the most probable tokens, as of ``LocalLLM``.
_SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Options of a language model that vLLM runs; each set of them has a server of its own.

    Args:
        pool_bytes: bytes of keys and values; None for what vLLM takes by itself.
        max_requests: most requests that vLLM computes at a time; others wait, by deadline and
            depth.
        max_threads: most threads of a forward on processors; None for what vLLM takes by itself.
        kv_reuse: ``exact``, every prompt is computed as a whole, but for beginnings that were seen;
            ``full`` and ``fused`` as of ``LocalOptions``, approximate, by the connector
            ``vllm_rag_accel``.
        recompute_ratio: of ``fused``, the share of the texts' tokens that are computed again.
        kv_recipe: of ``full`` and ``fused``, as of ``LocalOptions``.
        kv_folder: of ``full`` and ``fused``, keeps the states of texts, in files that hold no text.
            It may be that of local models of the same weights and dtype, which find each other's.
        kv_disk_bytes: most bytes of its files; 4 GiB by default.
        kv_max_age_s: older files are not used and removed, in seconds; None for any age.
        chunk_bytes: most bytes of states in the memory of vLLM's process; 1 GiB by default.
        python: the interpreter of the environment that has vLLM and rag-accel; None for that of
            this process.
        start_timeout_s: seconds that the server may take until it answers.
        work_timeout_s: seconds after which work that has not ended ends in ``EngineError``.
        engine_args: further options of vLLM's server by name, such as ``{"max_model_len": 8192}``.

    Raises ConfigError on a value out of range.
    """

    pool_bytes: int | None = None
    max_requests: int = 64
    max_threads: int | None = None
    kv_reuse: ServedReuse = "exact"
    recompute_ratio: float = RECOMPUTE_RATIO
    kv_recipe: KvRecipe = "neighbours"
    kv_folder: str | None = None
    kv_disk_bytes: int = DISK_BYTES
    kv_max_age_s: float | None = None
    chunk_bytes: int = CHUNK_BYTES
    python: str | None = None
    start_timeout_s: float = 600.0
    work_timeout_s: float = 1800.0
    engine_args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        for name in ("max_requests", "pool_bytes", "max_threads"):
            check_whole(f"VllmOptions.{name}", getattr(self, name), 1)
        for name in ("chunk_bytes", "kv_disk_bytes"):
            check_whole(f"VllmOptions.{name}", getattr(self, name), 0)
        check_least("VllmOptions.kv_max_age_s", self.kv_max_age_s, 0)
        for name in ("start_timeout_s", "work_timeout_s"):
            check_least(f"VllmOptions.{name}", getattr(self, name), 0.001)
        _ = self.told  # refuses a way of reuse that there is not
        if self.reuses_texts and self.kv_folder is None:
            raise ConfigError(
                "vLLM's processes find the states of texts in a folder, and none is named",
                where="VllmOptions.kv_folder",
                found=f"kv_reuse={self.kv_reuse!r} with kv_folder=None",
                valid="a folder",
                hint='name it: VllmLLM(..., kv_folder="/var/lib/texts")',
            )
        self._check_engine_args()

    @property
    def reuses_texts(self) -> bool:
        """Tell whether the retrieved texts of prompts are reused."""
        return self.kv_reuse != "exact"

    @property
    def told(self) -> VllmServerOptions:
        """Return what the server is told with each request."""
        return VllmServerOptions(self.kv_reuse, self.recompute_ratio, self.kv_recipe, priority=True)

    @property
    def remote(self) -> RemoteOptions:
        """Return the options of the server's client."""
        return RemoteOptions(
            # More than vLLM computes at a time: of those that wait it takes the most urgent first.
            concurrency=max(_LEAST_HANDED, 4 * self.max_requests),
            read_timeout_s=self.work_timeout_s,
            total_timeout_s=self.work_timeout_s,
        )

    def notes(self, output: GenerationOutput) -> dict[str, Any]:
        return self.told.notes(output)

    def arguments(self, model: str, dtype: str | None, template: str | None) -> Iterator[str]:
        """Yield the arguments of ``python -m vllm_rag_accel.serve``.

        Args:
            model: a folder, or a name on the hub.
            dtype: None for that of the checkpoint.
            template: a file with the chat template; None for the tokenizer's.
        """
        given: dict[str, Any] = {
            "disable_log_stats": True,
            "disable_uvicorn_access_log": True,
            "override_generation_config": _SAMPLING,
            **self.engine_args,
            "model": model,
            "dtype": dtype,
            "chat_template": template,
            "max_num_seqs": self.max_requests,
            "kv_cache_memory_bytes": self.pool_bytes,
            "scheduling_policy": "priority",
        }
        if self.reuses_texts:
            given |= {
                "kv_folder": self.kv_folder,
                "kv_memory_bytes": self.chunk_bytes,
                "kv_disk_bytes": self.kv_disk_bytes,
                "kv_max_age_s": self.kv_max_age_s,
            }
        else:
            given["no_kv_folder"] = True
        for name, value in given.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                yield f"--{flag}" if value else f"--no-{flag}"
            elif isinstance(value, list | tuple):
                yield from (f"--{flag}", *map(str, value))
            elif value is not None:
                text = json.dumps(value) if isinstance(value, Mapping) else str(value)
                yield from (f"--{flag}", text)

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the server besides those of this process."""
        found = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        if self.max_threads is not None:
            found["OMP_NUM_THREADS"] = str(self.max_threads)
            found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        return found

    def _check_engine_args(self) -> None:
        given = self.engine_args
        if not isinstance(given, Mapping) or not all(map(_is_name, given)):
            raise ConfigError(
                "options of vLLM's server are given by name",
                where="VllmOptions.engine_args",
                found=repr(given)[:200],
                valid='a mapping, such as {"max_model_len": 8192}',
            )
        if taken := sorted(given.keys() & _SET_HERE.keys()):
            raise ConfigError(
                "an option of vLLM's server has an option of its own",
                where=f"VllmOptions.engine_args[{taken[0]!r}]",
                found=repr(given[taken[0]]),
                valid="other names",
                hint=f"it is set by {_SET_HERE[taken[0]]}",
            )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name) is not None
