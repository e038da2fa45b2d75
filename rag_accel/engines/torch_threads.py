"""Computing on a granted number of torch threads without changing the number of other threads.

``torch.set_num_threads`` does three things at once. It sets the size of the calling thread's own
OpenMP and MKL teams, which is what a step wants; it stores the same number for the whole process,
where every thread picks it up at its *first* torch operation; and no other thread that has already
computed notices. So a bare call in a worker leaves the main thread alone, yet shrinks or grows
every thread the user starts later. Only the public function reaches MKL's own number, therefore it
is called here, and a short-lived thread writes the process's number back at once.

What remains visible to the user, and cannot be avoided with torch's public functions: a thread that
runs its first torch operation between the two writes starts with our number (one thread switch
apart: tens of microseconds, more while other threads hold the interpreter); a
``torch.set_num_threads`` of the user in that same moment may be put back; and MKL's "dynamic"
adjustment is off from then on, as after any call of ``torch.set_num_threads``. None of it happens
while a step is granted what its thread has anyway.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# The number for newcomers is one value per process, so only one change may be under way.
_CHANGING = threading.Lock()


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute on ``threads`` torch threads in the calling thread until the block ends.

    Does nothing for 0 (the work is done elsewhere), where torch has not been imported, where torch
    was not built on OpenMP (its number is then one per process) or where the calling thread has
    that number already, which is free; a change costs two short-lived threads, about 0.3 ms.
    Threads that exist and threads that are started meanwhile keep theirs. Where none can be
    started, the calling thread keeps the number that it has.
    """
    if threads < 1 or "torch" not in sys.modules:
        yield
        return
    import torch

    # Asking also makes torch initialise this thread; otherwise its first operation would do so
    # later and overwrite what is set here. Not while another change is under way: see above.
    with _CHANGING:
        own = torch.get_num_threads()
    if own == threads or "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        yield
        return
    _set_here_only(threads)
    try:
        yield
    finally:
        _set_here_only(own)


def on_threads(threads: int, call: Callable[[], T]) -> Callable[[], T]:
    """Return ``call`` made to compute on so many torch threads of its caller."""

    def compute() -> T:
        with thread_count(threads):
            return call()

    return compute


def _set_here_only(threads: int) -> None:
    import torch

    known, written = threading.Event(), threading.Event()

    def keep_number_for_newcomers() -> None:
        newcomers = torch.get_num_threads()
        known.set()
        written.wait()
        torch.set_num_threads(newcomers)

    with _CHANGING:
        keeper = threading.Thread(target=keep_number_for_newcomers, name="rag-accel-threads")
        try:
            keeper.start()
        except RuntimeError:  # the system has no thread left
            return
        known.wait()
        try:
            torch.set_num_threads(threads)
        finally:
            written.set()
            keeper.join()
