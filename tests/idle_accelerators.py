"""Whether an accelerator that a program has used is at rest, once threads had time to end."""

from __future__ import annotations

import time

from rag_accel import Accelerator

PATIENCE_S = 10.0


def soon_idle(accelerator: Accelerator) -> bool:
    """Tell whether an accelerator comes to hold nothing.

    A program may return before its requests end: a chat writes its history in a thread of its own.
    """
    until = time.monotonic() + PATIENCE_S
    while not accelerator.is_idle:
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
