"""The wait before another attempt: as the server asks for it, or as a client makes it."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Any

from rag_accel.engine_api.transient import AGAIN

#: a client's wait before its first retry, doubled for each one after it, and the most it comes to
_FIRST_RETRY_S, _MOST_RETRY_S = 0.5, 8.0
#: the longest wait that a server may ask for
LONGEST_RETRY_AFTER_S = 120.0
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS_S = (3600.0, 60.0, 1.0, 0.001)


def seconds_asked(headers: Mapping[str, str]) -> float:
    """Return the seconds that ``Retry-After`` asks for as a number; 0.0 without one."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if math.isfinite(asked_s):
            return asked_s
    return 0.0


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that ``Retry-After`` asks for, as a number or a date; 0.0 without any."""
    date = parsedate_tz(headers.get("retry-after", ""))
    if date is None:
        return seconds_asked(headers)
    try:
        return max(0.0, mktime_tz(date) - time.time())
    except (ValueError, OverflowError):  # no day of any calendar
        return 0.0


def reset_s(headers: Mapping[str, str]) -> float:
    """Return after how many seconds a server without requests left has some; 0.0 if it has any."""
    if headers.get("x-ratelimit-remaining-requests", "").strip() != "0":
        return 0.0
    found = _DURATION.fullmatch(headers.get("x-ratelimit-reset-requests", "").strip())
    if found is None:
        return 0.0
    pairs = zip(found.groups(), _UNITS_S, strict=True)
    return sum(float(number) * unit_s for number, unit_s in pairs if number)


def retry_delay_s(error: BaseException, num_retries: int = 0) -> float:
    """Return how long a client waits after an error before it tries again; 0.0 if it does not.

    The rules are those of the openai client: it tries again after a timeout, a lost connection and
    the statuses 408, 409, 429 and 5xx, and waits as long as the server asks, two minutes at most.

    Args:
        error: of an attempt.
        num_retries: how often the client has tried again before.
    """
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    own_s = min(_FIRST_RETRY_S * 2.0 ** min(num_retries, 16), _MOST_RETRY_S)
    own_s *= 1 - 0.25 * random.random()
    if response is None:
        is_lost = hasattr(error, "request")
        return own_s if is_lost else 0.0
    headers: Any = getattr(response, "headers", {})
    asked_s = seconds_asked(headers) or retry_after_s(headers)
    if headers.get("x-should-retry") == "false" or asked_s > LONGEST_RETRY_AFTER_S:
        return 0.0
    is_retried = isinstance(status, int) and (status in AGAIN or status >= 500)
    if not is_retried and headers.get("x-should-retry") != "true":
        return 0.0
    return asked_s if asked_s > 0 else own_s
