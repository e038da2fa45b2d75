"""Acceleration of all frameworks that are installed."""

from __future__ import annotations

from rag_accel.errors import ConfigError
from rag_accel.registry import automatic_registry


def switch_on() -> None:
    """Have every framework that can be imported accelerated in this process, from now on.

    Raises:
        ConfigError: if none can.
    """
    registry, missing = automatic_registry(), list[str]()
    for name in registry.names():
        try:
            switch = registry.get(name)
        except ImportError as error:
            missing.append(str(error))
        else:
            switch()
    if len(missing) == len(registry.names()):
        raise ConfigError(
            "nothing to accelerate",
            found="; ".join(missing) or "no integration",
            valid=", ".join(registry.names()) or "an installed integration",
            hint="install the extra of the framework that the program uses",
        )
