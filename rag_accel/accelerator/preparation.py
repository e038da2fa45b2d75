"""The preparation of engines before their first request: samples, compilations, placements."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from rag_accel.engine_api import EngineProfile
from rag_accel.errors import DeadlineError
from rag_accel.leaves.leaves import Work
from rag_accel.scheduler.messages import EngineName

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator

#: Most seconds of a preparation, if no number is given. A model that is traced and compiled for the
#: first time on two busy cores takes a minute.
PREPARE_S: Final = 300.0
#: Runs of each sample once all is compiled and placed: the first makes buffers and threads.
_RUNS = 2
_COMPILING: Final = "rag_accel.engines.embedding.compiled_model"

#: Returns the engines of a program, those that it lacks made; asked again after a placement.
EnginesOf = Callable[[], Iterable[EngineName]]
#: An engine with the accelerator that has it.
EngineAt: TypeAlias = "tuple[Accelerator, EngineName]"


class Preparations:
    """The preparations under way on one accelerator. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[threading.Event] = set()

    @property
    def are_running(self) -> bool:
        """Tell whether one is under way."""
        return bool(self._running)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Count a block as a preparation."""
        over = threading.Event()
        self._running.add(over)
        try:
            yield
        finally:
            self._running.discard(over)
            over.set()

    def wait(self, end: float) -> bool:
        """Wait for those under way until a time of the monotonic clock; tell whether they ended."""
        return all(over.wait(left_s(end)) for over in list(self._running))


def left_s(end: float) -> float:
    """Return the seconds until a time of the monotonic clock, at least 0."""
    return max(0.0, end - time.monotonic())


def prepare_engines(
    accelerator: Accelerator,
    engines: EnginesOf,
    profiles: Callable[[], Mapping[EngineName, EngineProfile]],
    timeout_s: float,
) -> bool:
    """Bring engines to where each request finds what it needs; tell whether that took no longer.

    Args:
        accelerator: whose engines they are.
        engines: them.
        profiles: returns their profiles, by name.
        timeout_s: the most seconds to wait for a sample, a compilation or a placement. The loading
            of a model cannot be cut short.

    Raises:
        Exception: what an engine raises for its sample.
    """
    end = time.monotonic() + timeout_s

    def run_samples(most: int | None = None) -> None:
        names = dict.fromkeys(engines())  # first, as it makes those that lack
        known = profiles()
        for name in names:
            for kind, payload in known[name].samples[:most] if name in known else ():
                identity = accelerator.anonymous(deadline_s=left_s(end))
                identity.spans = None  # nobody asked for it
                accelerator.leaves.compute(identity, Work(name, kind, payload))

    try:
        run_samples(1)  # which begins to compile
        is_placed = accelerator.embedders.wait_for_placements(end)
        # Without torch it cannot be imported; and where nobody has, no model is compiled.
        if (compiling := sys.modules.get(_COMPILING)) is not None:
            compiling.wait_until_compiled(left_s(end))
        for _ in range(_RUNS):
            run_samples()
    except DeadlineError:
        return False
    return is_placed and time.monotonic() < end
