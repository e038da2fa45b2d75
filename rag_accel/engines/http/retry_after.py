"""Reading of ``Retry-After``: the wait that a refusing server asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz


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
