"""Micro-batches are under way in as many streams as suits those who wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines.embedding.encoder import Piece
from rag_accel.engines.embedding.under_way import IN_LINE_FROM, TEXTS_PER_STREAM, UnderWay
from rag_accel.engines.pending import PendingWork, Slot

COST = IN_LINE_FROM // 8


@dataclass
class Run:
    """End when told to."""

    is_done: bool = False

    def wait(self, timeout_s: float) -> bool:
        return self.is_done

    def __call__(self) -> Any:
        return []


@dataclass
class Prepared:
    """Start runs, and keep on how many threads each was started."""

    overlaps: bool = True
    threads: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    lengths: tuple[int, ...] = ()

    def start(self, rows: Any, threads: int) -> Run:
        self.threads.append(threads)
        self.runs.append(Run())
        return self.runs[-1]


class Rig:
    def __init__(self, max_threads: int = 2, overlaps: bool = True) -> None:
        self.pending: PendingWork[str, Any] = PendingWork(lambda request, results: results)
        self.prepared = Prepared(overlaps)
        self.under_way = UnderWay(self.pending, self._cut, max_threads)
        self.streams: list[int] = []
        self.number = 0

    def _cut(self, streams: int) -> Iterator[Piece]:
        self.streams.append(streams)
        slots = self.pending.take(10**9)
        each = -(-len(slots) // streams)
        for start in range(0, len(slots), max(1, each)):
            yield self._piece(slots[start : start + each])

    def _piece(self, slots: list[Slot[str]]) -> Piece:
        rows = {slot: row for row, slot in enumerate(slots)}
        return Piece("query", self.prepared, rows, slots)  # type: ignore[arg-type]

    def add(self, count: int) -> list[WorkId]:
        ids = [WorkId(f"w{self.number + n}") for n in range(count)]
        self.number += count
        for id_ in ids:
            request = EngineRequest(id_, "1", PrimitiveKind.EMBEDDING, TextBatch(("a",), "query"))
            self.pending.add(request, ["a"], [COST])
        return ids

    def end(self, places: Iterable[int]) -> None:
        for place in places:
            self.prepared.runs[place].is_done = True


def test_few_callers_get_all_threads_and_newcomers_stand_in_line() -> None:
    rig = Rig()
    rig.add(1)
    rig.under_way.fill(2)
    rig.add(1)
    rig.under_way.fill(2)
    assert rig.prepared.threads == [2, 2]
    rig.add(1)
    rig.under_way.fill(2)
    assert len(rig.under_way) == 2  # one computes, one is in line, the third waits


def test_a_crowd_gets_a_stream_for_each_thread() -> None:
    rig = Rig()
    rig.add(2 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    assert rig.prepared.threads == [1, 1]
    assert rig.streams == [2]


def test_a_part_of_the_threads_has_a_part_of_the_streams_and_nobody_in_line() -> None:
    rig = Rig(max_threads=4)
    rig.add(8 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    rig.add(8 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    assert rig.prepared.threads == [1, 1]


@pytest.mark.parametrize(("waiting", "in_line"), [(7, 0), (8, 1)])
def test_behind_a_crowd_only_enough_stands_in_line(waiting: int, in_line: int) -> None:
    rig = Rig()
    rig.add(2 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    rig.add(waiting)
    rig.under_way.fill(2)
    assert len(rig.under_way) == 2 + in_line


def test_a_crowd_is_remembered_for_a_while() -> None:
    rig = Rig()
    gone = rig.add(2 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    rig.pending.cancel(gone)
    started = len(rig.prepared.threads)
    threads: list[int] = []
    for _ in range(12):
        one = rig.add(1)
        rig.under_way.fill(2)
        threads += rig.prepared.threads[started:]
        started = len(rig.prepared.threads)
        rig.pending.cancel(one)
    assert threads[0] == 1
    assert threads[-1] == 2


def test_what_has_ended_first_is_taken_first() -> None:
    rig = Rig()
    rig.add(2 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    rig.end([1])
    piece = rig.under_way.take(2)
    assert piece is not None
    assert piece.end is rig.prepared.runs[1]
    rig.end([0])
    piece = rig.under_way.take(2)
    assert piece is not None
    assert piece.end is rig.prepared.runs[0]


def test_with_one_in_line_the_oldest_is_taken() -> None:
    rig = Rig()
    rig.add(1)
    rig.under_way.fill(2)
    rig.add(1)
    rig.under_way.fill(2)
    piece = rig.under_way.take(2)  # not ended: whoever takes it waits, and no stream stands still
    assert piece is not None
    assert piece.end is rig.prepared.runs[0]


def test_who_waits_returns_for_newcomers_where_they_can_start() -> None:
    rig = Rig()
    rig.add(1)
    rig.under_way.fill(2)
    rig.under_way.interrupt()  # also if it comes before the wait
    assert rig.under_way.take(2) is None
    rig.end([0])
    assert rig.under_way.take(2) is not None


def test_a_run_that_ends_badly_has_ended() -> None:
    rig = Rig()
    rig.add(1)
    rig.under_way.fill(2)

    def fail(timeout_s: float) -> bool:
        raise RuntimeError("out of memory")

    rig.prepared.runs[0].wait = fail  # type: ignore[method-assign]
    assert rig.under_way.take(2) is not None


def test_what_nobody_wants_any_more_is_dropped_or_not_started() -> None:
    rig = Rig()
    first = rig.add(1)
    rig.under_way.fill(2)
    rig.pending.cancel(first)
    rig.under_way.fill(2)
    assert len(rig.under_way) == 0
    many = rig.add(4 * TEXTS_PER_STREAM)
    rig.under_way.fill(2)
    rig.pending.cancel(many)
    rig.under_way.clear()
    assert len(rig.under_way) == 0


def test_torch_computes_one_at_a_time_when_asked_and_the_rest_is_put_back() -> None:
    rig = Rig(overlaps=False)
    rig.add(3)
    rig.under_way.fill(2)
    assert len(rig.under_way) == 1
    assert rig.prepared.threads == []
    assert rig.under_way.take(2) is not None
    rig.add(2)
    rig.under_way.fill(2)
    rig.under_way.put_back()
    assert len(rig.under_way) == 0
    assert rig.pending.waiting_cost() == 2 * COST
