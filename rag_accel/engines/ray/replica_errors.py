"""Errors of a replica, and the check of its versions."""

from __future__ import annotations

from rag_accel.engines.ray.host import versions_here
from rag_accel.engines.ray.messages import HostInfo
from rag_accel.engines.ray.options import RayOptions
from rag_accel.errors import ConfigError, EngineError, EngineLostError


def lost_error(name: str, why: str) -> EngineLostError:
    """Return the error of work whose actor is gone."""
    return EngineLostError(
        "the actor of an engine was lost while it worked",
        where=name,
        found=why,
        hint="send the work again: Ray starts the actor again, at most max_restarts times",
    )


def unstarted_error(name: str, why: str) -> EngineLostError:
    """Return the error of an actor whose process cannot start, or starts no more."""
    return EngineLostError(
        "the actor of an engine does not start",
        where=name,
        found=why,
        hint="every node needs rag-accel and what the engine imports; Ray starts an actor that "
        "died again at most max_restarts times",
    )


def late_start_error(name: str, options: RayOptions) -> EngineError:
    """Return the error of an actor that is not ready in time."""
    wanted = ", ".join(f"{name}: {amount:g}" for name, amount in options.wanted.items())
    return EngineError(
        "an actor has not made its engine in time",
        where=name,
        found=f"it waits for room on a node ({wanted}), or the engine takes long to make",
        valid=f"within start_timeout_s={options.start_timeout_s:g} seconds",
        hint="see `ray status` for what is free, or give it more time",
    )


def overdue_error(name: str, options: RayOptions) -> EngineError:
    """Return the error of work that has taken too long."""
    return EngineError(
        "an actor has not ended a piece of work in time",
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
            "a worker of the cluster runs another version",
            where=f"{name}, on {info.node}",
            found=", ".join(f"{key} {value}" for key, value in sorted(other.items())),
            valid=", ".join(f"{key} {here.get(key)}" for key in sorted(other)),
            hint="install the same versions on every node",
        )
