"""Errors of a replica, and the check of its versions."""

from __future__ import annotations

from rag_accel.engines.replicas.host import versions_here
from rag_accel.engines.replicas.messages import HostInfo
from rag_accel.engines.replicas.options import ReplicaOptions
from rag_accel.errors import ConfigError, EngineError, EngineLostError


def lost_error(name: str, why: str) -> EngineLostError:
    """Return the error of work whose process is gone."""
    return EngineLostError(
        "the process of an engine was lost while it worked",
        where=name,
        found=why,
        hint="send the work again: the process is started again, at most max_restarts times",
    )


def unstarted_error(name: str, why: str) -> EngineLostError:
    """Return the error of a process that cannot start, or starts no more."""
    return EngineLostError(
        "the process of an engine does not start",
        where=name,
        found=why,
        hint="it needs rag-accel and what the engine imports, on every node; one that died is "
        "started again at most max_restarts times",
    )


def late_start_error(name: str, options: ReplicaOptions) -> EngineError:
    """Return the error of a process that is not ready in time."""
    needs = f"it waits for {options.needs}, or " if options.needs else ""
    return EngineError(
        "a process has not made its engine in time",
        where=name,
        found=f"{needs}the engine takes long to make",
        valid=f"within start_timeout_s={options.start_timeout_s:g} seconds",
        hint="give it more time; on a cluster, see what is free",
    )


def overdue_error(name: str, options: ReplicaOptions) -> EngineError:
    """Return the error of work that has taken too long."""
    return EngineError(
        "a process has not ended a piece of work in time",
        where=name,
        valid=f"within work_timeout_s={options.work_timeout_s:g} seconds",
        hint="give it more time, or the engine more replicas",
    )


def check_versions(name: str, info: HostInfo) -> None:
    """Check that both sides run the same versions.

    Raises:
        ConfigError: they do not.
    """
    here = versions_here()
    other = {key: value for key, value in info.versions.items() if here.get(key) != value}
    if other:
        raise ConfigError(
            "a process runs another version",
            where=f"{name}, on {info.node}",
            found=", ".join(f"{key} {value}" for key, value in sorted(other.items())),
            valid=", ".join(f"{key} {here.get(key)}" for key in sorted(other)),
            hint="install the same versions wherever processes are started",
        )
