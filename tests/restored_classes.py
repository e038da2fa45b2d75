"""Whether the classes that were patched for a program are restored once nobody holds it."""

from __future__ import annotations

import gc
import time
from typing import Any

from rag_accel.interception.patches import patches

PATIENCE_S = 10.0


#: what a test was told of: the ones after it neither wait for it nor fail because of it
_told: set[Any] = set()


def still_patched() -> list[Any]:
    """Return what stays patched though threads of the program had time to end."""
    until = time.monotonic() + PATIENCE_S
    while _untold() and time.monotonic() < until:  # who held the list would hold classes in it
        gc.collect()
        time.sleep(0.001)
    left = _untold()
    _told.update(left)
    return left


def _untold() -> list[Any]:
    return [patched for patched in patches.patched() if patched not in _told]
