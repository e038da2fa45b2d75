"""The end of a process with the one that has started it, however that ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOK_S = 1.0


def end_with(parent: int, end: Callable[[], object]) -> None:
    """End this process once its parent is another one, or has been from the start.

    Args:
        parent: id of the process that has started this one.
        end: ends this process, in a thread of its own.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        end()

    threading.Thread(target=watch, name="rag-accel-parent", daemon=True).start()
