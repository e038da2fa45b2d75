"""Schedule a program as it is: every leaf class is patched while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_rag_accel.activation import Activation
from langchain_rag_accel.interception import patches
from rag_accel.accelerator import Accelerator


@contextmanager
def activate(accelerator: Accelerator | None = None) -> Iterator[Accelerator]:
    """Schedule every LangChain leaf called while the block runs, whoever made it and where.

    Covers all threads and tasks of the process and all leaf classes, those defined in the block
    too. A program accelerated by ``accelerate`` stays a request of its own; a leaf called outside
    any such program is one. Blocks may be nested, also with different accelerators, and opened by
    several threads: a call belongs to the innermost block around it, else to the one opened last.
    """
    block = Activation(accelerator)
    use = patches.acquire()
    try:
        block.open()
        try:
            yield block.accelerator
        finally:
            block.close()
    finally:
        patches.release(use)
