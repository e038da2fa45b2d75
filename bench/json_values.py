"""Check values that were read from JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rag_accel.errors import ConfigError

RERUN = "run the suite again"


def check_keys(data: Any, wanted: Iterable[str], where: str) -> None:
    """Refuse what is no object with exactly the wanted fields.

    Raises:
        ConfigError: naming what was found.
    """
    check(data, dict, where)
    if set(data) != set(wanted):
        raise ConfigError(
            "not the fields of a result",
            where=where,
            found=", ".join(sorted(data)),
            valid=", ".join(sorted(wanted)),
            hint=RERUN,
        )


def check(value: Any, kind: type, where: str) -> None:
    """Refuse a value of another type; ``float`` stands for any finite number.

    Raises:
        ConfigError: naming what was found.
    """
    accepted = (int, float) if kind is float else kind
    wrong = not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool))
    if wrong or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(
            "bad value in a result",
            where=where,
            found=repr(value),
            valid="a finite number" if kind is float else kind.__name__,
            hint=RERUN,
        )
