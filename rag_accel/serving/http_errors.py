"""Exceptions as HTTP answers: our words for what a client can mend, an id for anything else.

Words are told of errors that the server itself raised. Of the same classes from inside the object
only the class is: their words may name what the client must not know.
"""

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


LONGEST_RETRY_S = 86_400
"""The longest ``Retry-After``."""

_GENERAL = {
    BusyError: "the program is busy",
    DeadlineError: "the request ran past its deadline",
    ClosedError: "the program takes no requests",
    ServedRequestError: "the program cannot serve this request",
}


def answer_error(error: BaseException) -> ErrorAnswer:
    """Return what a client is told of an exception; log what it is not told."""
    if isinstance(error, ServedRequestError) and 400 <= error.status < 600:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        return _told(error.status, error, headers)
    if isinstance(error, BusyError):
        return _told(429, error, {"Retry-After": str(_retry_after(error.retry_after_s))})
    if isinstance(error, DeadlineError):
        return _told(504, error)
    if isinstance(error, ClosedError):
        return _told(503, error, {"Connection": "close"})
    number = uuid.uuid4().hex
    _logger.error("request failed: %s", number, exc_info=error)
    message = f"the request failed; the server's log has it as {number}"
    return ErrorAnswer(500, _body(500, message, None))


def _retry_after(seconds: object) -> int:
    if not isinstance(seconds, int | float) or not seconds > 1:
        return 1
    return math.ceil(min(seconds, LONGEST_RETRY_S))


def _is_own(error: BaseException) -> bool:
    """Tell whether the server raised an error, or made it and raised it nowhere."""
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return str(traceback.tb_frame.f_globals.get("__name__")).startswith(f"{__package__}.")


def _told(status: int, error: RagAccelError, headers: dict[str, str] | None = None) -> ErrorAnswer:
    if _is_own(error):
        message = str(error)
    else:
        _logger.info("answered %d: %s", status, error)
        general = next(words for kind, words in _GENERAL.items() if isinstance(error, kind))
        message = f"[{error.code}] {general}"
    return ErrorAnswer(status, _body(status, message, error.code), headers or {})


def _body(status: int, message: str, code: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
