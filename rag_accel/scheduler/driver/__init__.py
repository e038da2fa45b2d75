"""The driver of the core: the only part of the scheduler with threads, loops and clocks.

The driver is plain threads over one mailbox, not an event loop: it never awaits anything, because
every command is a message to a worker, a caller's thread or a caller's loop. A mailbox costs a
fifth of an event loop's hand-over, and nothing a caller does to its own loop can stall it.
"""

from rag_accel.scheduler.driver.begun_calls import BegunCall
from rag_accel.scheduler.driver.delivery import GraphClient
from rag_accel.scheduler.driver.leaf import (
    AsyncLeaf,
    AsyncStreamLeaf,
    BegunWork,
    KeptLeaf,
    LeafClient,
    SyncLeaf,
    SyncStreamLeaf,
    TextStream,
)
from rag_accel.scheduler.driver.loop import Driver
from rag_accel.scheduler.driver.outcomes import Result, error_for
from rag_accel.scheduler.driver.worker import Check, EngineWorker

__all__ = [
    "AsyncLeaf",
    "AsyncStreamLeaf",
    "BegunCall",
    "BegunWork",
    "Check",
    "Driver",
    "EngineWorker",
    "GraphClient",
    "KeptLeaf",
    "LeafClient",
    "Result",
    "SyncLeaf",
    "SyncStreamLeaf",
    "TextStream",
    "error_for",
]
