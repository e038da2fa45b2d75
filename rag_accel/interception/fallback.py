"""Fallback to the framework's own code after an internal error, which the program never sees."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rag_accel.accelerator import Accelerator
from rag_accel.errors import BusyError, DeadlineError, ForkedError, RequestCancelledError

logger = logging.getLogger("rag_accel.interception")

T = TypeVar("T")

#: seconds in which the same kind of failure is logged once
WARN_EVERY_S = 60
_warned: weakref.WeakKeyDictionary[Accelerator, dict[str, float]] = weakref.WeakKeyDictionary()

#: Errors that are the caller's own limits or doing. Whatever else happens to a leaf before the
#: program's code runs is our failure, and must not become the program's.
CALLER_ERRORS = (BusyError, DeadlineError, ForkedError, RequestCancelledError)


def fail_open(accelerator: Accelerator, error: Exception, where: str) -> None:
    """Count and log an internal error, or raise it when strict."""
    if isinstance(error, CALLER_ERRORS) or accelerator.options.strict:
        raise error
    reason = type(error).__name__
    accelerator.count_bypass(where, reason)
    # Text only: a kept record would keep the error, its frames and so the whole program alive. And
    # not at this level: it may hold what the program works on.
    logger.debug("%s runs without the scheduler: %s", where, str(error))
    if _is_due(accelerator, reason):
        logger.warning(
            "%s runs without the scheduler: %s; its text is logged at level DEBUG, further ones are"
            " only counted for %d seconds",
            where,
            reason,
            WARN_EVERY_S,
        )


def _is_due(accelerator: Accelerator, reason: str) -> bool:
    """Tell whether a warning for this reason may be logged; a service must not be flooded."""
    warned = _warned.setdefault(accelerator, {})
    now = time.monotonic()
    if now - warned.get(reason, -math.inf) < WARN_EVERY_S:
        return False
    warned[reason] = now
    return True


def start_in_pool(
    accelerator: Accelerator, call: Callable[[], T], where: str
) -> asyncio.Future[T] | None:
    """Start a call in the accelerator's threads; ``None`` after an internal error."""
    try:
        return accelerator.calls.start(call)
    except Exception as error:
        fail_open(accelerator, error, where)
        return None


def with_fallback(
    accelerator: Accelerator,
    owned: Callable[[], T],
    plain: Callable[[], T],
    where: str,
) -> T:
    """Return ``owned()``; if that fails, ``plain()``, whose own error is what the program sees.

    Where the plain way succeeds the failure was ours: counted and logged, raised when strict.
    """
    try:
        return owned()
    except CALLER_ERRORS:
        raise
    except Exception as error:
        result = plain()
        fail_open(accelerator, error, where)
        return result


async def awith_fallback(
    accelerator: Accelerator,
    owned: Callable[[], Awaitable[T]],
    plain: Callable[[], Awaitable[T]],
    where: str,
) -> T:
    """Do as ``with_fallback`` on the caller's loop."""
    try:
        return await owned()
    except CALLER_ERRORS:
        raise
    except Exception as error:
        result = await plain()
        fail_open(accelerator, error, where)
        return result
