"""The options of an HTTP engine: limits, timeouts and retries."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def _bounded(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _check(options: DataclassInstance) -> None:
    for spec in fields(options):
        if not spec.metadata:
            continue
        value, low, high = getattr(options, spec.name), spec.metadata["low"], spec.metadata["high"]
        if not low <= value <= high:
            raise ConfigError(
                "option out of range",
                where=f"{type(options).__name__}.{spec.name}",
                found=repr(value),
                valid=f"{low} to {high}",
            )


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Bounds of what an HTTP engine does.

    Args:
        concurrency: requests in flight at once; more wait inside the engine.
        connect_timeout_s: for connecting.
        read_timeout_s: for the first byte and for every silence after it.
        total_timeout_s: for a whole call with all its attempts and pauses, from when it got one of
            the ``concurrency`` places.
        max_response_bytes: longest answer accepted.
        stream_usage: ask for token counts at the end of streams; turn off for servers that refuse
            ``stream_options``.
        max_retries: attempts after the first one where a refusal (HTTP 408, 409, 429, from 500) or
            a broken connection may pass. The pauses are the openai client's: 0.5 s doubled up to
            8 s, or the server's ``Retry-After`` up to two minutes; after a longer one it gives up.
            None are made for a stage with ``retry=``, which makes its own.
        retry_budget: such attempts that all calls together make before one is answered; each answer
            allows one more, up to this number. So a server that is down is not asked many times for
            each call.
    """

    concurrency: int = _bounded(64, 1, 10_000)
    connect_timeout_s: float = _bounded(10.0, 0.001, 600.0)
    read_timeout_s: float = _bounded(120.0, 0.001, 86_400.0)
    total_timeout_s: float = _bounded(1800.0, 0.001, 86_400.0)
    max_response_bytes: int = _bounded(16 * 1024 * 1024, 1, 1 << 40)
    stream_usage: bool = True
    max_retries: int = _bounded(3, 0, 100)
    retry_budget: int = _bounded(64, 0, 1_000_000)

    def __post_init__(self) -> None:
        _check(self)
