"""Whether the classes that were patched for a program are restored once nobody holds it."""

from __future__ import annotations

import gc
import time
from typing import Any

from rag_accel.interception.patches import patches

PATIENCE_S = 10.0


def still_patched() -> list[Any]:
    """Return what stays patched though threads of the program had time to end."""
    until = time.monotonic() + PATIENCE_S
    gc.collect()
    while patches.patched() and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
    return patches.patched()
