"""The worker class that lets the connector compute rows: ``--worker-cls``."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)
PATH = "vllm_rag_accel.worker.Worker"


def rows_refusal(config: Any) -> str | None:
    """Return why an engine's worker computes no rows, with the setting that helps; None if it does.

    Args:
        config: vLLM's ``VllmConfig``.
    """
    parallel = config.parallel_config
    reasons = [
        (str(parallel.worker_cls) != PATH, f"start vLLM with --worker-cls {PATH}"),
        (
            bool(getattr(config, "use_v2_model_runner", False)),
            "model runner V2 computes none: set VLLM_USE_V2_MODEL_RUNNER=0",
        ),
        (
            getattr(parallel, "data_parallel_size", 1) > 1,
            "workers of --data-parallel-size > 1 step together: start one server for each",
        ),
        (
            getattr(config, "lora_config", None) is not None,
            "rows have no adapter: start vLLM without --enable-lora",
        ),
    ]
    return next((reason for holds, reason in reasons if holds), None)


def _worker_class() -> type:
    """Return the class, made from the one that vLLM would take on this machine."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker as Base
    else:
        from vllm.v1.worker.gpu_worker import Worker as Base

    class Worker(Base):
        """A worker whose model runner is known to the connector."""

        def initialize_from_config(self, kv_cache_config: Any) -> None:
            """Make the caches, then give the connector what computes rows."""
            super().initialize_from_config(kv_cache_config)
            refusal = rows_refusal(self.vllm_config)
            if refusal is not None:
                _log.warning(
                    "reuse 'fused' is refused, and no tokens between texts are computed: %s",
                    refusal,
                )
            elif has_kv_transfer_group():
                connector = get_kv_transfer_group()
                if hasattr(connector, "bind_runner"):
                    connector.bind_runner(self.model_runner)

    Worker.__module__, Worker.__qualname__ = __name__, "Worker"
    return Worker


def __getattr__(name: str) -> Any:
    if name != "Worker":
        raise AttributeError(name)
    globals()[name] = made = _worker_class()
    return made
