"""Options of the connector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rag_accel.errors import ConfigError
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.tiers import TieredStore

#: The bytes kept in a worker's memory, if none are given.
MEMORY_BYTES = 4 << 30
#: The bytes of files, if none are given.
DISK_BYTES = 32 << 30


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Options of ``kv_connector_extra_config``.

    Args:
        folder: keeps the states of texts, in files that hold no text; made with mode 0700. It may
            be the ``kv_folder`` of local models, too. Programs that use it trust each other.
        memory_bytes: most bytes of states in the worker's memory; 4 GiB by default.
        disk_bytes: most bytes of the folder's files; 32 GiB by default.
        max_age_s: older files are not used and removed, in seconds; None for any age.
        step_rows: most rows that are computed for texts before one step of the server; as many as
            the step itself may compute by default. A request waits for a step with room for its
            rows; texts for which one has none are computed by the server.
        row_block: of ``fused``, tokens to compute again are chosen by aligned blocks of so many
            neighbours. Blocks cost less than single tokens in long prompts, and recover less.

    Raises ConfigError on a value out of range.
    """

    folder: Path
    memory_bytes: int = MEMORY_BYTES
    disk_bytes: int = DISK_BYTES
    max_age_s: float | None = None
    step_rows: int = 8192
    row_block: int = 1

    @classmethod
    def read(cls, config: Any) -> ConnectorOptions:
        """Return the options in an engine's configuration.

        Args:
            config: vLLM's ``VllmConfig``.

        Raises:
            ConfigError: an option is unknown, missing or out of range.
        """
        given = dict(config.kv_transfer_config.kv_connector_extra_config or {})
        given.setdefault("step_rows", config.scheduler_config.max_num_batched_tokens)
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise _refused("unknown option", ", ".join(unknown), " | ".join(_NAMES))
        if not isinstance(given.get("folder"), str) or not given["folder"]:
            raise _refused("folder is missing", given.get("folder"), "a path")
        for name in ("memory_bytes", "disk_bytes", "step_rows"):
            value = given.get(name, 0)
            if type(value) is not int or value < 0:
                raise _refused(f"{name} is out of range", value, "a whole number, at least 0")
        block = given.get("row_block", 1)
        if type(block) is not int or block < 1:
            raise _refused("row_block is out of range", block, "a whole number, at least 1")
        age = given.get("max_age_s")
        is_age = isinstance(age, int | float) and not isinstance(age, bool) and age >= 0
        if age is not None and not is_age:
            raise _refused("max_age_s is out of range", age, "seconds, at least 0")
        return cls(**{**given, "folder": Path(given["folder"]).expanduser()})

    def store(self, model: str, dtype: torch.dtype) -> TieredStore:
        """Return the store of a worker.

        Raises:
            ConfigError: the folder cannot be used.
        """
        disk = DiskStore(
            self.folder,
            limit_bytes=self.disk_bytes,
            model=model,
            dtype=dtype,
            max_age_s=self.max_age_s,
        )
        return TieredStore(self.memory_bytes, disk)


_NAMES = ("folder", "memory_bytes", "disk_bytes", "max_age_s", "step_rows", "row_block")


def _refused(what: str, found: object, valid: str) -> ConfigError:
    return ConfigError(
        what,
        where="--kv-transfer-config, kv_connector_extra_config",
        found=found,
        valid=valid,
        hint='name a folder: {"folder": "/var/lib/texts"}',
    )
