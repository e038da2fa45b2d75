"""Counts of leaf calls by class, method and way through the scheduler, or the reason for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.interception.leaf_call import NotedCall
from rag_accel.interception.leaf_table import is_scheduled, leaf_class, plain_class

_PAST = "not seen by a wrapper: a cache of the framework's answered, or it was called past them"

#: Of an object that an engine may run.
_OTHERS = "an engine of this library runs others of its calls"


@dataclass(frozen=True, slots=True)
class CoveredCalls:
    """The calls of one method of one class that went one way.

    Args:
        cls: the class's name; in brackets the kind, where the class is not known.
        method: the method's name; empty where only the framework told of the calls.
        scheduled: those whose work was queued on an owned engine.
        borrowed: those that the scheduler admitted and that ran where their caller was.
        passed_by: those that the framework ran without the scheduler.
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
        name = f"{self.cls}.{self.method}" if self.method else self.cls
        if self.passed_by:
            return f"{name}: {self.passed_by} passed by: {self.reason}"
        counts = [(self.scheduled, "scheduled"), (self.borrowed, "borrowed")]
        text = f"{name}: " + ", ".join(f"{count} {way}" for count, way in counts if count)
        return f"{text}: {self.reason}" if self.borrowed and self.reason else text


class CallTally:
    """Counts of leaf calls by kind, class and method. Not thread-safe: a meter locks around it."""

    def __init__(self) -> None:
        self._owned: Counter[tuple[str, str, str]] = Counter()
        self._borrowed: Counter[tuple[str, str, str]] = Counter()
        self._past: Counter[tuple[str, str, str, str]] = Counter()
        self._seen: Counter[tuple[str, str]] = Counter()
        #: why calls were borrowed, each reason once
        self._why: dict[tuple[str, str, str], dict[str, None]] = {}

    def note(self, kind: str, call: NotedCall, number: int = 1) -> None:
        """Count a call that a wrapper reported."""
        cls = plain_class(type(call.obj)).__name__
        if call.way is None:
            self._past[kind, cls, call.method, call.reason] += number
        elif call.way == "owned":
            self._owned[kind, cls, call.method] += number
            if call.was_admitted:
                self._borrowed[kind, cls, call.method] -= number
        else:
            self._borrowed[kind, cls, call.method] += number
            if call.reason:
                self._why.setdefault((kind, cls, call.method), {})[call.reason] = None

    def see(self, kind: str, cls: str, number: int = 1) -> None:
        """Count a call that the framework reported."""
        self._seen[kind, cls] += number

    def calls(
        self, past: Mapping[str, int], seen: Mapping[tuple[str, str], int] | None = None
    ) -> tuple[CoveredCalls, ...]:
        """Return all calls, those that passed by last.

        Args:
            past: how many calls of each kind passed by, which the framework knows best.
            seen: more that the framework told of, by kind and class.
        """
        passed = sorted({*self._owned, *self._borrowed})
        covered = [self._covered(key) for key in passed]
        rest = [row for kind in sorted(past) for row in self._past_of(kind, past[kind], seen or {})]
        return (*(row for row in covered if row.scheduled or row.borrowed), *rest)

    def _covered(self, key: tuple[str, str, str]) -> CoveredCalls:
        borrowed = max(self._borrowed[key], 0)
        reason = " / ".join(self._why.get(key, ())) if borrowed else ""
        return CoveredCalls(key[1], key[2], self._owned[key], borrowed, reason=reason)

    def _past_of(
        self, kind: str, number: int, seen: Mapping[tuple[str, str], int]
    ) -> Iterator[CoveredCalls]:
        """Yield a kind's calls that passed by: those with a reason first, a class's before none."""
        for cls, method, reason, count in self._reasons(kind, seen):
            taken = min(count, number)
            if taken > 0:
                number -= taken
                yield CoveredCalls(cls, method, passed_by=taken, reason=reason)
        if number > 0:
            yield CoveredCalls(f"({kind})", "", passed_by=number, reason=_PAST)

    def _reasons(
        self, kind: str, seen: Mapping[tuple[str, str], int]
    ) -> Iterator[tuple[str, str, str, int]]:
        noted: Counter[str] = Counter()
        for (its_kind, cls, method, reason), count in sorted(self._past.items()):
            if its_kind == kind:
                noted[cls] += count
                yield cls, method, reason, count
        for known in (self._owned, self._borrowed):
            for (its_kind, cls, _), count in known.items():
                noted[cls] += count if its_kind == kind else 0
        for (its_kind, cls), count in sorted({**self._seen, **seen}.items()):
            if its_kind == kind and cls:
                yield cls, "", _PAST, count - noted[cls]


def why_borrowed(call: NotedCall) -> str:
    """Return why no engine runs an admitted call, and what would change that."""
    return why_not(call.obj, call.accelerator) or _OTHERS


def why_not(leaf: Any, accelerator: Accelerator | None) -> str:
    """Return why no engine runs a leaf, and what would change that; empty where one does."""
    if is_scheduled(plain_class(type(leaf))):
        return ""
    try:
        return leaf_class(type(leaf)).framework.why_not(leaf, accelerator)
    except Exception as error:  # of the program's own attributes, which are its business
        return f"what it holds cannot be looked at: {error!r}"


def as_text(calls: Iterable[CoveredCalls]) -> list[str]:
    """Return calls as lines under their totals."""
    calls = tuple(calls)
    scheduled = sum(call.scheduled for call in calls)
    borrowed = sum(call.borrowed for call in calls)
    past = sum(call.passed_by for call in calls)
    return [
        f"calls: {scheduled} scheduled (queued on an owned engine), {borrowed} borrowed"
        f" (admitted, run where the caller is), {past} passed by",
        *(f"  {call}" for call in calls),
    ]
