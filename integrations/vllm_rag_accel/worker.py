"""The worker class that lets the connector compute rows: ``--worker-cls``."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

PATH = "vllm_rag_accel.worker.Worker"


def is_row_worker(config: Any) -> bool:
    """Tell whether an engine's configuration names this worker class."""
    return str(config.parallel_config.worker_cls) == PATH


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
            if has_kv_transfer_group():
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
