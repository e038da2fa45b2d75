"""The bounds of a local language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rag_accel.errors import ConfigError

KvReuse = Literal["exact", "full"]


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
        kv_reuse: ``exact``, every prompt is computed; ``full``, retrieved texts take the state they
            have behind the prompt's head (FusionRAG section 3.1), which is approximate.
        chunk_bytes: most bytes kept of retrieved texts.
        least_chunk_tokens: shorter texts are always computed.

    Raises ConfigError on a value out of range.
    """

    max_tokens_default: int = 512
    step_tokens: int = 512
    stall_s: float = 0.25
    max_works: int = 64
    prefix_lanes: int = 16
    max_threads: int | None = None
    kv_reuse: KvReuse = "exact"
    chunk_bytes: int = 1 << 30
    least_chunk_tokens: int = 8

    def __post_init__(self) -> None:
        for name in ("max_tokens_default", "step_tokens", "max_works", "max_threads"):
            check_least(f"LocalOptions.{name}", getattr(self, name), 1)
        check_least("LocalOptions.stall_s", self.stall_s, 0.001)
        for name in ("prefix_lanes", "chunk_bytes"):
            check_least(f"LocalOptions.{name}", getattr(self, name), 0)
        check_least("LocalOptions.least_chunk_tokens", self.least_chunk_tokens, 1)
        if self.kv_reuse not in get_args(KvReuse):
            raise ConfigError(
                "unknown way of reuse",
                where="LocalOptions.kv_reuse",
                found=self.kv_reuse,
                valid=" | ".join(get_args(KvReuse)),
            )


def check_least(where: str, value: float | None, least: float) -> None:
    """Raise ConfigError where a number is given that is too small."""
    if value is not None and value < least:
        valid = f"at least {least}"
        raise ConfigError("option out of range", where=where, found=value, valid=valid)
