"""Configure an HTTP engine: limits, timeouts and when a failed attempt is worth another."""

from __future__ import annotations

import email.utils
import math
import random
from collections.abc import Mapping
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
class RetryPolicy:
    """Say how often and after what pause a failed attempt is repeated.

    The pause before attempt ``n + 1`` is drawn between half and all of
    ``min(max_pause_s, base_s * 2**(n - 1))``. A server's ``Retry-After`` is waited for in full,
    plus up to ``base_s`` so that clients do not return together; one beyond ``max_retry_after_s``
    ends the work instead.

    Args:
        max_attempts: attempts in all; 1 never retries.
        base_s: first pause.
        max_pause_s: longest pause of our own.
        max_retry_after_s: longest pause a server may ask for.
        seed: of the jitter; ``None`` draws another one each time.
    """

    max_attempts: int = _bounded(4, 1, 100)
    base_s: float = _bounded(0.5, 0.0, 600.0)
    max_pause_s: float = _bounded(8.0, 0.0, 3600.0)
    max_retry_after_s: float = _bounded(60.0, 0.0, 3600.0)
    seed: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def pause_s(
        self, attempt: int, retry_after_s: float | None, jitter: random.Random
    ) -> float | None:
        """Return the seconds to wait after failed attempt number ``attempt``; None gives up."""
        if attempt >= self.max_attempts:
            return None
        if retry_after_s is not None:
            if retry_after_s > self.max_retry_after_s:
                return None
            return retry_after_s + self.base_s * jitter.random()
        longest = min(self.max_pause_s, self.base_s * 2.0 ** (attempt - 1))
        return longest * (0.5 + 0.5 * jitter.random())


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Bound what an HTTP engine does.

    Args:
        concurrency: requests in flight at once; more wait inside the engine.
        connect_timeout_s: for connecting.
        read_timeout_s: for the first byte and for every silence after it.
        total_timeout_s: for a whole call with all its attempts and pauses, from when it got one of
            the ``concurrency`` places.
        max_response_bytes: longest answer accepted.
        stream_usage: ask for token counts at the end of streams; turn off for servers that refuse
            ``stream_options``.
        retry: when to try again.
    """

    concurrency: int = _bounded(64, 1, 10_000)
    connect_timeout_s: float = _bounded(10.0, 0.001, 600.0)
    read_timeout_s: float = _bounded(120.0, 0.001, 86_400.0)
    total_timeout_s: float = _bounded(1800.0, 0.001, 86_400.0)
    max_response_bytes: int = _bounded(16 * 1024 * 1024, 1, 1 << 40)
    stream_usage: bool = True
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self) -> None:
        _check(self)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After`` as seconds from now; None if it is absent or makes no sense.

    A date is read against the answer's own ``Date``, so the two clocks need not agree.
    """
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return _seconds_between(headers.get("date"), text)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_between(start: str | None, end: str) -> float | None:
    if start is None:
        return None
    try:
        moments = [email.utils.parsedate_to_datetime(text).timestamp() for text in (start, end)]
    except (ValueError, OverflowError):  # no date, or one beyond the calendar
        return None
    return max(0.0, moments[1] - moments[0])
