"""One micro-batch is under way and one in line, so that a compiled model never stands still."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines.embedding.microbatches import MicroBatches, Piece
from rag_accel.engines.pending import PendingWork, Slot

COST = 20


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
    def __init__(self, max_threads: int = 2, overlaps: bool = True, parts: int = 1) -> None:
        self.pending: PendingWork[str, Any] = PendingWork(lambda request, results: results)
        self.prepared = Prepared(overlaps)
        self.under_way = MicroBatches(self.pending, self._cut, max_threads)
        self.parts = parts
        self.cuts = 0
        self.number = 0

    def _cut(self) -> Iterator[Piece]:
        self.cuts += 1
        slots = self.pending.take(10**9)
        each = -(-len(slots) // self.parts)
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


def test_more_than_one_micro_batch_can_hold_stands_ready() -> None:
    rig = Rig(parts=3)
    rig.add(9)
    rig.under_way.fill(2)
    assert (len(rig.under_way), rig.prepared.threads) == (2, [2, 2])
    rig.end([0])
    assert rig.under_way.take(2) is not None
    rig.under_way.fill(2)
    assert (len(rig.under_way), rig.cuts) == (2, 1)


def test_a_part_of_the_threads_has_no_run_in_line() -> None:
    rig = Rig(max_threads=4, parts=2)
    rig.add(8)
    rig.under_way.fill(2)
    rig.add(8)
    rig.under_way.fill(2)
    assert rig.prepared.threads == [2]


def test_with_one_in_line_the_oldest_is_taken_without_a_look() -> None:
    rig = Rig()
    rig.add(1)
    rig.under_way.fill(2)
    rig.add(1)
    rig.under_way.fill(2)
    piece = rig.under_way.take(2)  # whoever takes it waits, the model does not stand still
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


def test_what_is_not_wanted_any_more_is_dropped_or_not_started() -> None:
    rig = Rig()
    first = rig.add(1)
    rig.under_way.fill(2)
    rig.pending.cancel(first)
    rig.under_way.fill(2)
    assert len(rig.under_way) == 0
    many = rig.add(16)
    rig.under_way.fill(2)
    rig.pending.cancel(many)
    rig.under_way.close()
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
    assert len(rig.pending.take(10**9)) == 2
