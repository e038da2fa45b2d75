"""Computing on a granted number of torch threads without changing the number of other threads.

``torch.set_num_threads`` does more than a step wants: it sets the size of the calling thread's own
OpenMP and MKL teams, and it also stores the number for the whole process, where every thread picks
it up at its *first* torch operation. A bare call in a worker would shrink or grow every thread that
the user starts later. So the two libraries are asked themselves, by the functions that torch calls
(``omp_set_num_threads`` and ``MKL_Set_Num_Threads_Local``, both for the calling thread alone), as
they stand in the library that torch has loaded. What torch then says it would use is compared once
a process.

A build of torch where that does not hold (another OpenMP loaded before it, symbols that are not
exported) gets torch's own function, and a short-lived thread that writes the process's number back
at once. There, and only there, a change costs 0.3 ms, a thread that runs its first torch operation
between the two writes starts with our number, and a ``torch.set_num_threads`` of the user in that
same moment may be put back.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# The process's number is one value, so only one thread may change and restore it at a time.
_CHANGING = threading.Lock()


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute on ``threads`` torch threads in the calling thread until the block ends.

    Does nothing for 0 (the work is done elsewhere), where torch has not been imported, where torch
    was not built on OpenMP (its number is then one per process) or where the calling thread has
    that number already. Threads that exist and threads that are started meanwhile keep theirs.
    """
    if threads < 1 or "torch" not in sys.modules:
        yield
        return
    import torch

    # Asking also makes torch initialise this thread; otherwise its first operation would do so
    # later and overwrite what is set here. Not while a change of the process is under way.
    with _CHANGING:
        own = torch.get_num_threads()
    if own == threads or not _is_built_on_openmp():
        yield
        return
    change = _own_numbers_setter() or _set_and_restore_process
    change(threads)
    try:
        yield
    finally:
        change(own)


def on_threads(threads: int, call: Callable[[], T]) -> Callable[[], T]:
    """Return ``call`` made to compute on so many torch threads of its caller."""

    def compute() -> T:
        with thread_count(threads):
            return call()

    return compute


@functools.cache
def _is_built_on_openmp() -> bool:
    import torch

    return "parallel backend: OpenMP" in torch.__config__.parallel_info()


@functools.cache
def _own_numbers_setter() -> Callable[[int], None] | None:
    """Return a setter of the calling thread's numbers alone, or None where this torch has none."""
    import torch

    own = torch.get_num_threads()
    try:
        # Symbols of what this library is linked with, OpenMP's among them, are found through it.
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        setters = [library.omp_set_num_threads]
        if torch.backends.mkl.is_available():
            # What C code calls; the name in small letters is Fortran's and takes an address.
            setters.append(library.MKL_Set_Num_Threads_Local)
    except (OSError, AttributeError):
        return None

    def change(threads: int) -> None:
        for setter in setters:
            setter(threads)

    change(own + 1)
    took_effect = set(_largest_teams()) == {own + 1}
    change(own)
    return change if took_effect else None


def _largest_teams() -> list[int]:
    """Return the thread numbers of the calling thread by torch, OpenMP and MKL."""
    import torch

    lines = torch.__config__.parallel_info().splitlines()
    teams = [int(line.rsplit(":", 1)[1]) for line in lines if "get_max_threads()" in line]
    return [torch.get_num_threads(), *teams]


def _set_and_restore_process(threads: int) -> None:
    """Change the calling thread's number by torch's function; put the process's number back.

    Where no thread can be started, the calling thread keeps the number that it has.
    """
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
