"""The bounds of a local language model."""

from __future__ import annotations

from dataclasses import dataclass

from rag_accel.errors import ConfigError

#: The bytes of keys and values, if none are given.
POOL_BYTES = 1 << 30
#: The lanes kept of ended sequences, if no number is given.
PREFIX_LANES = 16


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Bounds of what a local language model does.

    Args:
        max_tokens_default: most tokens of a completion whose request does not say.
        step_tokens: rows of a forward, about: every sequence that decodes has one, and prompts are
            computed in pieces of what is left. An interrupt is obeyed between forwards.
        stall_s: seconds a forward may take, about, by those before it: for so long nothing else
            comes of the engine. Pieces of prompts are cut smaller to keep to it.
        max_works: works worth handing over at once; the pool bounds how many of them run.
        prefix_lanes: most lanes kept of ended sequences for prompts that begin alike.
        max_threads: most threads a forward can use; None for all cores this process may use.

    Raises ConfigError on a value out of range.
    """

    max_tokens_default: int = 512
    step_tokens: int = 512
    stall_s: float = 0.25
    max_works: int = 64
    prefix_lanes: int = PREFIX_LANES
    max_threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens_default", "step_tokens", "max_works", "max_threads"):
            check_least(f"LocalOptions.{name}", getattr(self, name), 1)
        check_least("LocalOptions.stall_s", self.stall_s, 0.001)
        check_least("LocalOptions.prefix_lanes", self.prefix_lanes, 0)


@dataclass(frozen=True, slots=True)
class LocalBounds:
    """What a model may hold beside its weights; those who ask for other bounds share no engine.

    Args:
        pool_bytes: most bytes of keys and values.
        prefix_lanes: most lanes kept of ended sequences, see ``LocalOptions``.

    Raises ConfigError on a value out of range.
    """

    pool_bytes: int = POOL_BYTES
    prefix_lanes: int = PREFIX_LANES

    def __post_init__(self) -> None:
        check_least("pool_bytes", self.pool_bytes, 1)
        check_least("prefix_lanes", self.prefix_lanes, 0)

    @classmethod
    def of(cls, pool_bytes: int | None, prefix_lanes: int | None) -> LocalBounds:
        """Return bounds; None stands for the default."""
        given = {"pool_bytes": pool_bytes, "prefix_lanes": prefix_lanes}
        return cls(**{name: value for name, value in given.items() if value is not None})


def check_least(where: str, value: float | None, least: float) -> None:
    """Raise ConfigError where a number is given that is too small."""
    if value is not None and value < least:
        valid = f"at least {least}"
        raise ConfigError("option out of range", where=where, found=value, valid=valid)
