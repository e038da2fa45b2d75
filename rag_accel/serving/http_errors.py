"""Exceptions as HTTP answers: our words for what a client can mend, an id for anything else."""

from __future__ import annotations

import logging
import math
import uuid
from dataclasses import dataclass, field
from typing import Any

from rag_accel.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    RagAccelError,
    ServedRequestError,
)

_logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The status, the body and the headers that tell a client of an error."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict[str, str])


def answer_error(error: BaseException) -> ErrorAnswer:
    """Return what a client is told of an exception; log what it is not told."""
    if isinstance(error, ServedRequestError):
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        return _told(error.status, error, headers)
    if isinstance(error, BusyError):
        seconds = math.ceil(max(1.0, error.retry_after_s or 1.0))
        return _told(429, error, {"Retry-After": str(seconds)})
    if isinstance(error, DeadlineError):
        return _told(504, error)
    if isinstance(error, ClosedError):
        return _told(503, error, {"Connection": "close"})
    number = uuid.uuid4().hex
    _logger.error("request failed: %s", number, exc_info=error)
    message = f"the request failed; the server's log has it as {number}"
    return ErrorAnswer(500, _body(500, message, None))


def _told(status: int, error: RagAccelError, headers: dict[str, str] | None = None) -> ErrorAnswer:
    return ErrorAnswer(status, _body(status, str(error), error.code), headers or {})


def _body(status: int, message: str, code: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
