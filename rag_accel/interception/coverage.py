"""The share of a program that passes the scheduler, as ``coverage()`` of each framework tells it.

A meter learns of calls from the wrappers, and of what is called past them from its framework.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from rag_accel.accelerator import Accelerator, current_request
from rag_accel.interception.covered_calls import (
    CallTally,
    CoveredCalls,
    as_text,
    why_borrowed,
)
from rag_accel.interception.leaf_call import NotedCall, meters
from rag_accel.interception.leaf_table import leaf_base
from rag_accel.interception.option_reach import OptionReach, PartsOf, as_lines, reach_into
from rag_accel.interception.patches import patches
from rag_accel.interception.twins import twin_name
from rag_accel.system.weak_maps import WeakIdDict


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """The leaf calls of one kind.

    Args:
        kind: what was called.
        seen: all calls.
        queued: those that waited for their turn, or whose work did on an engine of ours.
        admitted: those that began at once and were reported.
        cached: those that a cache of the framework's answered, so that nothing was to be done.
    """

    kind: str
    seen: int
    queued: int
    admitted: int
    cached: int = 0

    @property
    def scheduled(self) -> int:
        """Return the calls that the scheduler knows of."""
        return self.queued + self.admitted

    @property
    def passed_by(self) -> int:
        """Return the calls that the scheduler never heard of, though there was work to do."""
        return self.seen - self.scheduled - self.cached


class Meter:
    """Leaf calls by kind, as the wrappers tell of them.

    A framework that tells of calls itself has a subclass: it knows those that passed by, too.

    Args:
        kinds: what objects are called, by the name of the base class that makes them leaves.
    """

    def __init__(self, kinds: Mapping[str, str] = MappingProxyType({})) -> None:
        self._kinds = kinds
        self._lock = threading.Lock()
        self._tally = CallTally()
        self._counts: Counter[tuple[str, str | None]] = Counter()

    def note(self, call: NotedCall) -> None:
        """Learn of a leaf call from its wrapper, and how it passed the scheduler if it did."""
        kind = self._kind_of(call.obj)
        with self._lock:
            self._tally.note(kind, call)
            if not call.was_admitted:
                self._counts[kind, call.way] += 1

    def _kind_of(self, obj: Any) -> str:
        base = leaf_base(type(obj))
        return "other" if base is None else self._kinds.get(base.__name__, "other")

    def rows(self) -> list[CoverageRow]:
        """Return one row per kind of leaf that was called, sorted by kind."""
        with self._lock:
            return self._rows()

    def _rows(self) -> list[CoverageRow]:
        past = Counter({kind: n for (kind, way), n in self._counts.items() if way is None})
        return self._rows_with(past)

    def _rows_with(
        self, past: Counter[str], cached: Counter[str] | None = None
    ) -> list[CoverageRow]:
        """Return the rows, given the calls by kind that passed by and that caches answered."""
        queued, admitted = self._scheduled()
        found = Counter(cached)
        seen = queued + admitted + past + found
        return [
            CoverageRow(kind, seen[kind], queued[kind], admitted[kind], found[kind])
            for kind in sorted(seen)
        ]

    def _scheduled(self) -> tuple[Counter[str], Counter[str]]:
        """Return the calls by kind that were queued, and those that were admitted."""
        queued, admitted = Counter[str](), Counter[str]()
        for (kind, way), number in self._counts.items():
            if way is not None:
                (admitted if way == "admitted" else queued)[kind] += number
        return queued, admitted

    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method."""
        with self._lock:
            return self._tally.calls({row.kind: row.passed_by for row in self._rows()})


class Coverage:
    """The share of a program that passes the scheduler, and the options that reach it.

    A context manager: calls made in its blocks are counted, in their contexts and those copied from
    them. Elsewhere, as in the threads of a pool, calls of the block's program count for it; those
    of no block's program count for the block opened last if their thread carries no context at all.
    Without a block it is a view of what is known of the program before it runs. Thread-safe but for
    its blocks, which are one thread's.

    Args:
        meter: counts.
        open_meter: returns a block whose calls it is told of.
        reach: returns how far options reach; empty if no program was given.
    """

    def __init__(
        self,
        meter: Meter,
        open_meter: Callable[[], AbstractContextManager[object]],
        reach: Callable[[], tuple[OptionReach, ...]] = tuple,
    ) -> None:
        self._meter = meter
        self._open_meter = open_meter
        self._reach = reach
        self._blocks: list[AbstractContextManager[object]] = []

    def __enter__(self) -> Coverage:
        block = self._open_meter()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(self, *raised: object) -> None:
        self._blocks.pop().__exit__(None, None, None)

    @property
    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method, those that passed by last, each with the reason."""
        return self._meter.calls()

    @property
    def scheduled(self) -> int:
        """Return how many calls had their work queued on an owned engine."""
        return sum(call.scheduled for call in self.calls)

    @property
    def borrowed(self) -> int:
        """Return how many calls the scheduler admitted and their caller ran."""
        return sum(call.borrowed for call in self.calls)

    @property
    def passed_by(self) -> int:
        """Return how many calls the framework ran without the scheduler."""
        return sum(call.passed_by for call in self.calls)

    @property
    def options(self) -> tuple[OptionReach, ...]:
        """Return which parts of the program read each option; empty without a program."""
        return self._reach()

    def rows(self) -> list[CoverageRow]:
        """Return the counts by kind of leaf."""
        return self._meter.rows()

    def __str__(self) -> str:
        return "\n".join([*as_text(self.calls), *as_lines(self.options)])


M = TypeVar("M", bound=Meter)


@dataclass(frozen=True, slots=True)
class _OpenBlock(Generic[M]):
    """An open meter, and the program that it was opened for: the object, and its runs' name."""

    meter: M
    program: Any = None
    name: str | None = None


class OpenMeters(Generic[M]):
    """The meters of one framework that are open, each for its context and those copied from it.

    In contexts without a meter, calls of a program count for the meter that was opened for it last,
    and calls in threads that carry no context at all for the meter opened last.

    Args:
        name: of the context variable that has the meter of a context.
        make_meter: makes one.
        parts_of: yields the parts of a program with the options that each reads.
        around: returns a block in which the framework tells all open meters of calls, too.
        inside: returns the program in what ``accelerate`` returned, and its own accelerator unless
            its class has it.
        name_of: returns the name of an accelerated program, by which its runs know it.
    """

    def __init__(
        self,
        name: str,
        make_meter: Callable[[], M],
        parts_of: PartsOf,
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        inside: Callable[[Any], tuple[Any, Accelerator | None]] = lambda program: (program, None),
        name_of: Callable[[Any], str | None] = twin_name,
    ) -> None:
        self._make_meter, self._parts_of = make_meter, parts_of
        self._around, self._inside, self._name_of = around, inside, name_of
        self._lock = threading.Lock()
        self._open: list[_OpenBlock[M]] = []
        #: entered while any is open
        self._listening = ExitStack()
        #: the meter of a context
        self.current: ContextVar[M | None] = ContextVar(name, default=None)
        #: why no engine runs an object's calls, looked at once an object while any is open
        self._reasons: WeakIdDict[str] = WeakIdDict()

    def coverage(self, program: Any = None) -> Coverage:
        """Return how much of a program passes the scheduler; a ``with`` block counts its calls.

        Args:
            program: whose options are looked at, and whose calls are counted in all threads of the
                process; of others, those made in the block, in this context and those copied from
                it.
        """
        meter, (inner, own) = self._make_meter(), self._inside(program)
        opened = partial(self.opened, meter, program)
        return Coverage(meter, opened, reach_into(inner, self._parts_of, own))

    @contextmanager
    def opened(self, meter: M, program: Any = None) -> Iterator[M]:
        """Have a meter told of every leaf call made in the block, and of a program's elsewhere.

        Leaf methods are patched meanwhile, so that calls of no accelerated program are told, too.
        """
        block = _OpenBlock(meter, program, self._name_of(program))
        use = patches.acquire()
        try:
            with self._lock:
                if not self._open:
                    self._listening.enter_context(self._around())
                    meters.append(self._note)
                self._open.append(block)
            token = self.current.set(meter)
            try:
                yield meter
            finally:
                with self._lock:
                    self._open = [one for one in self._open if one is not block]
                    if not self._open:
                        meters.remove(self._note)
                        self._listening.close()
                        self._reasons = WeakIdDict()
                self.current.reset(token)
        finally:
            patches.release(use)

    def here(self, obj: Any = None) -> M | None:
        """Return the meter that a call made here counts for, perhaps of an object."""
        meter = self.current.get()
        if meter is not None:
            return meter
        blocks, run = self._open[::-1], current_request.get()
        for block in blocks:
            of_run = run is not None and block.name is not None and block.name == run.program
            if of_run or (obj is not None and block.program is obj):
                return block.meter
        return blocks[0].meter if blocks and not len(copy_context()) else None

    def _note(self, call: NotedCall) -> None:
        meter = self.here(call.obj)
        if meter is not None:
            meter.note(replace(call, reason=self._why(call)) if call.is_borrowed else call)

    def _why(self, call: NotedCall) -> str:
        try:
            known = self._reasons.get(call.obj)
            return self._reasons.add(call.obj, why_borrowed(call)) if known is None else known
        except TypeError:  # without weak references
            return why_borrowed(call)
