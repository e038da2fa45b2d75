"""Switch off, for one arm, what no option switches off.

A switch gives an attribute of a module or a class another value while a block runs. It holds for
the whole process, so nothing else may run meanwhile; what has been made stays as it was made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from langchain_rag_accel import parallel_calls
from rag_accel.accelerator import accelerator
from rag_accel.config import Options
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.embedding import encoder_engine as embedding_engine
from rag_accel.engines.embedding.microbatches import MicroBatches
from rag_accel.engines.retrieval.vectors import nearest_clusters
from rag_accel.interception import wrappers
from rag_accel.leaves.leaves import Leaves
from rag_accel.passes import manager
from rag_accel.scheduler import dispatch
from rag_accel.scheduler.driver import Driver, handling
from rag_accel.scheduler.driver.handling import LoopWakeups
from rag_accel.scheduler.driver.mailbox import Mailbox
from rag_accel.scheduler.driver.turns import Turns
from rag_accel.scheduler.state import CoreOptions

Switch = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Lacking:
    """How an arm lacks one mechanism: by options, or by a switch while it is made or runs."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    switch: Switch = nullcontext
    made_under: Switch = nullcontext


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    with mock.patch.object(owner, name, value):
        yield


# Embedding -------------------------------------------------------------------------------------


def no_micro_batch_in_line() -> AbstractContextManager[None]:
    """Have at most one micro-batch under way."""
    return _instead(MicroBatches, "_most", lambda self, threads: 1)


def lengths_mixed() -> AbstractContextManager[None]:
    """Fill micro-batches, bounded as before, in an order that lengths have no part in."""

    def mixed(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
        order = random.Random(len(lengths)).sample(range(len(lengths)), len(lengths))
        batches: list[list[int]] = []
        longest = 0
        for index in order:
            longest = max(longest, lengths[index])
            if batches and (len(batches[-1]) + 1) * longest <= limits.batch:
                batches[-1].append(index)
            else:
                batches.append([index])
                longest = lengths[index]
        return batches

    return _instead(embedding_engine, "micro_batches", mixed)


def counted_micro_batches() -> AbstractContextManager[None]:
    """Bound micro-batches by their number of texts, as ``encode`` does: 32, of similar length."""

    def counted(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        return [order[first : first + 32] for first in range(0, len(order), 32)]

    return _instead(embedding_engine, "micro_batches", counted)


# Retrieval -------------------------------------------------------------------------------------


def clusters_one_by_one() -> AbstractContextManager[None]:
    """Compare each query with the centroids by itself."""
    return _instead(nearest_clusters, "MIN_QUERIES", math.inf)


# The scheduler and its driver ------------------------------------------------------------------

#: Waiting time that outweighs one level of depth where depth is to count for as good as nothing.
BLIND_AGEING_S = 0.001


def blind_to_depth() -> AbstractContextManager[None]:
    """Let accelerators that are made meanwhile start work by age, whatever depends on it."""
    make = accelerator._core_options

    def blind(options: Options, cores: int) -> CoreOptions:
        return replace(make(options, cores), ageing_s=BLIND_AGEING_S)

    return _instead(accelerator, "_core_options", blind)


def one_event_at_a_time() -> AbstractContextManager[None]:
    """Start what an event lets start before the next one is looked at."""
    return _instead(handling, "MAX_TOGETHER", 0)


def tasks_each_by_themselves() -> AbstractContextManager[None]:
    """Bring in the work of each task when it asks."""
    return _instead(Driver, "submit_together", Driver.submit)


def a_wake_for_each_task() -> AbstractContextManager[None]:
    """Wake a loop for each of its tasks that has an answer."""
    add = LoopWakeups.add

    def add_and_flush(self: LoopWakeups, *args: Any) -> None:
        add(self, *args)
        self.flush()

    return _instead(LoopWakeups, "add", add_and_flush)


def no_interrupts() -> AbstractContextManager[None]:
    """Let a step that waits go on waiting when work comes that could join it."""
    return _instead(dispatch, "_interrupt", lambda *_: None)


def reports_to_the_driver() -> AbstractContextManager[None]:
    """Leave what follows a step to the driver's thread."""
    return _instead(Turns, "post_and_drain", Turns.post)


def every_message_wakes() -> AbstractContextManager[None]:
    """Wake the driver's thread for what nobody waits for, too."""
    return _instead(Mailbox, "put_quietly", Mailbox.put)


def a_plan_for_each_request() -> AbstractContextManager[None]:
    """Run the passes for each region of each request."""
    return _instead(manager, "_kept_plan", manager._plan)


# Interception ----------------------------------------------------------------------------------


def every_call_waits_for_its_permit() -> AbstractContextManager[None]:
    """Let borrowed calls ask the driver's thread before they begin."""
    return _instead(Leaves, "begin", lambda *_: None)


def the_loops_own_threads() -> AbstractContextManager[None]:
    """Run sync-only leaves of a loop in that loop's default executor, as LangChain does."""
    return _instead(wrappers, "start_in_pool", lambda *_: None)


def one_call_after_another() -> AbstractContextManager[None]:
    """Let composite retrievers make their calls one by one."""
    return _instead(parallel_calls, "accelerator_of_calls", lambda: None)
