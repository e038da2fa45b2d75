"""The store of retrieved texts' states that an engine's options name."""

from __future__ import annotations

from pathlib import Path

from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.store import ChunkStore
from rag_accel.kv.tiers import TieredStore


def chunk_store(runner: Runner, options: LocalOptions) -> tuple[ChunkStore, str]:
    """Return a store, and the model's identity in its keys.

    With a folder all weights are read once, to tell their states from those of other models.

    Raises:
        ConfigError: the folder cannot be used.
    """
    admits_all = not options.reuses_texts  # paths come back sooner than texts do
    if options.kv_folder is None or options.kv_reuse == "exact":
        store = ChunkStore(options.chunk_bytes, options.eviction, admits_all)
        return store, ""  # no other engine ever sees it
    disk, identity = disk_store(runner, options, Path(options.kv_folder))
    return TieredStore(options.chunk_bytes, disk, options.eviction, admits_all), identity


def disk_store(runner: Runner, options: LocalOptions, folder: Path) -> tuple[DiskStore, str]:
    """Return the states of a model in a folder, and the model's identity; reads all weights.

    Raises:
        ConfigError: the folder cannot be used.
    """
    identity = runner.identity()
    try:
        disk = DiskStore(
            folder.expanduser(),
            limit_bytes=options.kv_disk_bytes,
            model=identity,
            dtype=runner.pool.dtype,
            max_age_s=options.kv_max_age_s,
        )
    except OSError as error:
        raise ConfigError(
            "the state of texts cannot be kept here",
            where="kv_folder",
            found=str(error),
            valid="a folder that can be written",
        ) from error
    return disk, identity
