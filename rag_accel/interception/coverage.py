"""The share of a program that passes the scheduler, as ``coverage()`` of each framework tells it.

A meter counts the leaf calls that wrappers report, by class, method, way and reason. What a cache
of the framework's answers, and what is called past the wrappers, is no leaf call.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from rag_accel.accelerator import Accelerator, current_request
from rag_accel.interception.leaf_call import NotedCall, Way, meters
from rag_accel.interception.leaf_table import Framework, leaf_base, why_not
from rag_accel.interception.option_reach import OptionReach, as_lines, reach_into
from rag_accel.interception.patches import patches
from rag_accel.interception.twins import twin_name
from rag_accel.system.methods import plain_class
from rag_accel.system.weak_maps import WeakIdDict

#: Of an object that an engine may run.
_OTHERS = "an engine of this library runs others of its calls"


@dataclass(frozen=True, slots=True)
class CoveredCalls:
    """The calls of one method of one class that went one way.

    Args:
        cls: the class's name.
        method: the method's name.
        scheduled: those whose work was queued on an owned engine.
        borrowed: those that the scheduler admitted and that ran where their caller was.
        passed_by: those that ran without the scheduler.
        reason: why they passed by, or why no engine ran those that were borrowed, and what would
            change that; empty where an engine ran all.
    """

    cls: str
    method: str
    scheduled: int = 0
    borrowed: int = 0
    passed_by: int = 0
    reason: str = ""

    def __str__(self) -> str:
        name = f"{self.cls}.{self.method}"
        if self.passed_by:
            return f"{name}: {self.passed_by} passed by: {self.reason}"
        counts = [(self.scheduled, "scheduled"), (self.borrowed, "borrowed")]
        text = f"{name}: " + ", ".join(f"{count} {way}" for count, way in counts if count)
        return f"{text}: {self.reason}" if self.borrowed and self.reason else text


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """The leaf calls of one kind.

    Args:
        kind: what was called.
        seen: all calls.
        queued: those that waited for their turn, or whose work did on an engine of ours.
        admitted: those that began at once and were reported.
    """

    kind: str
    seen: int
    queued: int
    admitted: int

    @property
    def scheduled(self) -> int:
        """Return the calls that the scheduler knows of."""
        return self.queued + self.admitted

    @property
    def passed_by(self) -> int:
        """Return the calls that the scheduler never heard of."""
        return self.seen - self.scheduled


class _CallKey(NamedTuple):
    kind: str
    cls: str
    method: str
    way: Way | None
    reason: str


class Meter:
    """Leaf calls as the wrappers report them. Used from any thread.

    Args:
        kinds: what objects are called, by the name of the base class that makes them leaves.
    """

    def __init__(self, kinds: Mapping[str, str] = MappingProxyType({})) -> None:
        self._kinds = kinds
        self._lock = threading.Lock()
        self._counts: Counter[_CallKey] = Counter()

    def note(self, call: NotedCall) -> None:
        """Count a leaf call; one whose engine has the work by now is borrowed no longer."""
        base = leaf_base(type(call.obj))
        kind = "other" if base is None else self._kinds.get(base.__name__, "other")
        key = _CallKey(
            kind, plain_class(type(call.obj)).__name__, call.method, call.way, call.reason
        )
        with self._lock:
            if call.was_admitted:
                before = [one for one, n in self._counts.items() if one[:3] == key[:3] and n > 0]
                borrowed = [one for one in before if one.way in ("admitted", "queued")]
                self._counts.subtract(borrowed[:1])
            self._counts[key] += call.count

    def rows(self) -> list[CoverageRow]:
        """Return one row per kind of leaf that was called, sorted by kind."""
        counts = self._counted()
        return [
            CoverageRow(
                kind,
                sum(count for key, count in counts if key.kind == kind),
                sum(n for key, n in counts if key.kind == kind and key.way in ("owned", "queued")),
                sum(n for key, n in counts if key.kind == kind and key.way == "admitted"),
            )
            for kind in sorted({key.kind for key, _ in counts})
        ]

    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method, those that passed by last."""
        counts = self._counted()
        covered = []
        for name in sorted({key[:3] for key, _ in counts if key.way is not None}):
            ways = [(key, n) for key, n in counts if key[:3] == name and key.way is not None]
            borrowed = [(key, n) for key, n in ways if key.way != "owned"]
            owned = sum(n for key, n in ways if key.way == "owned")
            why = " / ".join(dict.fromkeys(key.reason for key, _ in borrowed if key.reason))
            number = sum(n for _, n in borrowed)
            covered.append(CoveredCalls(*name[1:], owned, number, reason=why))
        past = sorted((key[:3], key.reason, n) for key, n in counts if key.way is None)
        return (
            *covered,
            *(CoveredCalls(*name[1:], passed_by=n, reason=reason) for name, reason, n in past),
        )

    def _counted(self) -> list[tuple[_CallKey, int]]:
        with self._lock:
            return [(key, count) for key, count in self._counts.items() if count]


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
        head = (
            f"calls: {self.scheduled} scheduled (queued on an owned engine), {self.borrowed}"
            f" borrowed (admitted, run where the caller is), {self.passed_by} passed by"
        )
        return "\n".join([head, *(f"  {call}" for call in self.calls), *as_lines(self.options)])


@dataclass(frozen=True, slots=True)
class _OpenBlock:
    """An open meter, and the program that it was opened for: the object, and its runs' name."""

    meter: Meter
    program: Any = None
    name: str | None = None


class OpenMeters:
    """The meters of one framework that are open, each for its context and those copied from it.

    In contexts without a meter, calls of a program count for the meter that was opened for it last,
    and calls in threads that carry no context at all for the meter opened last.

    Args:
        framework: theirs.
        kinds: what objects are called, by the name of the base class that makes them leaves.
        inside: returns the program in what ``accelerate`` returned, and its own accelerator unless
            its class has it.
        name_of: returns the name of an accelerated program, by which its runs know it.
    """

    def __init__(
        self,
        framework: Framework,
        kinds: Mapping[str, str],
        *,
        inside: Callable[[Any], tuple[Any, Accelerator | None]] = lambda program: (program, None),
        name_of: Callable[[Any], str | None] = twin_name,
    ) -> None:
        self._framework, self._kinds = framework, kinds
        self._inside, self._name_of = inside, name_of
        self._lock = threading.Lock()
        self._open: list[_OpenBlock] = []
        #: the meter of a context
        self._current: ContextVar[Meter | None] = ContextVar("rag_accel_coverage", default=None)
        #: why no engine runs an object's calls, looked at once an object while any is open
        self._reasons: WeakIdDict[str] = WeakIdDict()

    def coverage(self, program: Any = None) -> Coverage:
        """Return how much of a program passes the scheduler; a ``with`` block counts its calls.

        Args:
            program: whose options are looked at, and whose calls are counted in all threads of the
                process; of others, those made in the block, in this context and those copied from
                it.
        """
        meter, (inner, own) = Meter(self._kinds), self._inside(program)
        opened = partial(self._opened, meter, program)
        return Coverage(meter, opened, reach_into(inner, self._framework, own))

    @contextmanager
    def _opened(self, meter: Meter, program: Any) -> Iterator[Meter]:
        """Have a meter told of every leaf call made in the block, and of a program's elsewhere.

        Leaf methods are patched meanwhile, so that calls of no accelerated program are told, too.
        """
        block = _OpenBlock(meter, program, self._name_of(program))
        use = patches.acquire()
        try:
            with self._lock:
                if not self._open:
                    meters.append(self._note)
                self._open.append(block)
            token = self._current.set(meter)
            try:
                yield meter
            finally:
                with self._lock:
                    self._open = [one for one in self._open if one is not block]
                    if not self._open:
                        meters.remove(self._note)
                        self._reasons = WeakIdDict()
                self._current.reset(token)
        finally:
            patches.release(use)

    def _here(self, obj: Any) -> Meter | None:
        """Return the meter that a call of an object made here counts for."""
        meter = self._current.get()
        if meter is not None:
            return meter
        blocks, run = self._open[::-1], current_request.get()
        for block in blocks:
            of_run = run is not None and block.name is not None and block.name == run.program
            if of_run or block.program is obj:
                return block.meter
        return blocks[0].meter if blocks and not len(copy_context()) else None

    def _note(self, call: NotedCall) -> None:
        meter = self._here(call.obj)
        if meter is not None:
            meter.note(replace(call, reason=self._why(call)) if call.is_borrowed else call)

    def _why(self, call: NotedCall) -> str:
        try:
            known = self._reasons.get(call.obj)
            return self._reasons.add(call.obj, _why_borrowed(call)) if known is None else known
        except TypeError:  # without weak references
            return _why_borrowed(call)


def _why_borrowed(call: NotedCall) -> str:
    """Return why no engine runs an admitted call, and what would change that."""
    return why_not(call.obj, call.accelerator) or _OTHERS
