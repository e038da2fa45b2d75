"""Memory of this process that nothing uses any more."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def return_freed_memory() -> None:
    """Free what only cycles hold, and return freed memory to the system where it takes some.

    glibc keeps what was allocated in pieces of less than 32 MiB for later allocations, which after
    the weights of a model were freed may be most of them.
    """
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
