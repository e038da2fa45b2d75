"""Errors that another attempt may mend, told apart without importing the packages they are of."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from rag_accel.errors import (
    BusyError,
    ConfigError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    GraphError,
    RemoteEngineError,
    SchedulingError,
    ShardsChangedError,
)

#: HTTP statuses below 500 after which a client may ask again
AGAIN: Final = frozenset({408, 409, 429})

#: HTTP statuses from 300 on with which every server of a model would answer the request
_OF_REQUEST: Final = frozenset({400, 413, 422})

_MISUSE: Final = (ConfigError, GraphError, SchedulingError, EngineOutputError)

#: classes by the package that defines them, anywhere among an error's bases
_CLASSES: Final = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ServerTimeoutError"),
        ("anthropic", "APIConnectionError"),
        *(
            (package, name)
            for package in ("httpcore", "httpcore2", "httpx", "httpx2")
            for name in ("NetworkError", "RemoteProtocolError", "TimeoutException")
        ),
        ("neo4j", "ServiceUnavailable"),
        ("neo4j", "SessionExpired"),
        ("neo4j", "TransientError"),
        ("openai", "APIConnectionError"),
        ("ray", "ActorDiedError"),
        ("ray", "ActorUnavailableError"),
        ("ray", "GetTimeoutError"),
        ("ray", "NodeDiedError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "NewConnectionError"),
    }
)


class RetryBudget:
    """The attempts beyond the first ones that an engine may make: as many as calls were answered.

    Args:
        most: how many may be made before any answer, and after a time of answers.
    """

    def __init__(self, most: int) -> None:
        self.left = self._most = most

    def spend(self) -> bool:
        """Take an attempt; return whether there was one left."""
        is_left = self.left > 0
        self.left -= is_left
        return is_left

    def earn(self) -> None:
        """Note that a call was answered."""
        self.left = min(self._most, self.left + 1)


def is_transient(error: BaseException) -> bool:
    """Tell whether another attempt may mend an error.

    Those are failed connections, timeouts, the HTTP statuses 408, 409, 429 and 5xx, engines that
    are busy or lost, and shards that another program changed first; and an engine's error that one
    of these has caused.
    """
    if isinstance(error, BusyError | EngineLostError | ShardsChangedError):
        return True
    if isinstance(error, _MISUSE):
        return False
    status = _status(error)
    if status is not None:
        return status in AGAIN or 500 <= status < 600
    if isinstance(error, RemoteEngineError | ConnectionError | TimeoutError):
        return True
    if any((base.__module__.partition(".")[0], base.__name__) in _CLASSES for base in _mro(error)):
        return True
    cause = error.__cause__
    return isinstance(error, EngineError) and cause is not None and is_transient(cause)


def is_refusal(error: BaseException) -> bool:
    """Tell whether a server takes no more for now: HTTP 429 or 503, or no answer in time."""
    if (status := _status(error)) is not None:
        return status in (429, 503)
    return is_timeout(error)


def is_timeout(error: BaseException) -> bool:
    """Tell whether a client gave up because no answer came in time."""
    return _status(error) is None and any("Timeout" in base.__name__ for base in _mro(error))


def is_doubtful(error: BaseException) -> bool:
    """Tell whether an error is the engine's or the request's, which another engine shows.

    Those are refusals that a wrong address, key or model gives (a redirect, HTTP 401, 403, 404 and
    others below 500 but 400, 413 and 422), and answers that cannot be right.
    """
    if isinstance(error, EngineOutputError):
        return True
    status = _status(error)
    return status is not None and 300 <= status < 500 and status not in AGAIN | _OF_REQUEST


def retry_after_s(error: BaseException) -> float | None:
    """Return after how many seconds an error asks to come again, if it does."""
    told: Any = getattr(error, "retry_after_s", None)
    if told is None:
        told = _header(getattr(getattr(error, "response", None), "headers", None))
    if not isinstance(told, int | float) or isinstance(told, bool):
        return None
    return float(told) if math.isfinite(told) and told >= 0 else None


def _mro(error: BaseException) -> tuple[type, ...]:
    return type(error).__mro__


def _status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    for holder, name in ((error, "status"), (error, "status_code"), (response, "status_code")):
        status = getattr(holder, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
            return status
    return None


def _header(headers: Any) -> float | None:
    """Return the seconds of a ``Retry-After`` header: a number, or a date."""
    get = getattr(headers, "get", None)
    text = get("retry-after") or get("Retry-After") if callable(get) else None
    if not isinstance(text, str):
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
