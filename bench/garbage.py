"""Keep garbage collections from deciding which arm was the faster."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def little_garbage() -> Iterator[None]:
    """Keep what lives now out of garbage collections in the block.

    A full one takes a third of a second with torch and LangChain loaded, a fifth of some runs, and
    it comes to whichever arm is under way.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
