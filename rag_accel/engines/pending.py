"""The items of many pieces of work, kept apart while one batch computes them together.

An engine that batches across requests takes *slots* (one item of one work each) from here, runs
any mix of them in one call and gives each result back to its slot. A work ends when all its slots
have a result, or with the first error of any; what happens to one never reaches another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from rag_accel.engine_api import EngineOutput, EngineRequest, WorkId

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
PieceT = TypeVar("PieceT")


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Generic[ItemT]):
    """One item of one work: ``position`` counts inside the work. Compared by identity."""

    work: WorkId
    position: int
    item: ItemT
    cost: int


@dataclass(slots=True)
class _Work(Generic[ItemT, ResultT]):
    request: EngineRequest
    todo: deque[Slot[ItemT]]  # cheapest first
    todo_cost: int
    results: dict[int, ResultT]
    size: int


class PendingWork(Generic[ItemT, ResultT]):
    """Submitted work whose items do not all have results yet.

    Args:
        finish: turns a request and its results, in item order, into the final value; what it
            raises becomes the error of that work.
    """

    def __init__(self, finish: Callable[[EngineRequest, list[ResultT]], object]) -> None:
        self._finish = finish
        self._works: dict[WorkId, _Work[ItemT, ResultT]] = {}
        self._outputs: list[EngineOutput] = []

    def __len__(self) -> int:
        """Return the number of works whose end has not been drained."""
        return len(self._works) + len(self._outputs)

    def add(self, request: EngineRequest, items: Sequence[ItemT], costs: Sequence[int]) -> None:
        """Take the items of one request with an estimated cost (at least 1) for each.

        Cheap items are taken first, so that what is taken together is of similar length.
        """
        slots = [
            Slot(request.id, position, item, cost)
            for position, (item, cost) in enumerate(zip(items, costs, strict=True))
        ]
        slots.sort(key=lambda slot: slot.cost)
        self._works[request.id] = _Work(request, deque(slots), sum(costs), {}, len(slots))
        if not slots:
            self._end(request.id)

    def fail(self, work: WorkId, error: BaseException) -> None:
        """End one work with an error, whether it was added or is refused right away."""
        self._works.pop(work, None)
        self._outputs.append(EngineOutput(work, "error", error=error))

    def cancel(self, ids: Iterable[WorkId]) -> None:
        """Forget work and its outputs; unknown ids are ignored."""
        gone = set(ids)
        for work in gone:
            self._works.pop(work, None)
        self._outputs = [output for output in self._outputs if output.id not in gone]

    def take(self, limit: int) -> list[Slot[ItemT]]:
        """Remove and return slots of about ``limit`` cost in all, shared fairly among works.

        Each work gets at least one slot; what small works do not need goes to the large ones
        (max-min fairness), so that a bulk load and a single query progress side by side.
        """
        waiting = sorted(
            (work for work in self._works.values() if work.todo), key=lambda work: work.todo_cost
        )
        taken: list[Slot[ItemT]] = []
        left = limit
        for index, work in enumerate(waiting):
            share = left // (len(waiting) - index)
            left -= _take_share(work, share, taken)
        return taken

    def clear(self) -> None:
        self._works.clear()
        self._outputs.clear()

    def put_back(self, slots: Sequence[Slot[ItemT]]) -> None:
        """Return slots that were taken and not computed; those of ended work are dropped."""
        for slot in reversed(slots):
            work = self._works.get(slot.work)
            if work is not None:
                work.todo.appendleft(slot)
                work.todo_cost += slot.cost

    def is_alive(self, slot: Slot[ItemT]) -> bool:
        """Tell whether the work of this slot has not ended meanwhile."""
        return slot.work in self._works

    def settle(self, slot: Slot[ItemT], result: ResultT) -> None:
        """Store the result of one slot; the last one of its work ends it."""
        work = self._works.get(slot.work)
        if work is None:
            return
        work.results[slot.position] = result
        if len(work.results) == work.size:
            self._end(slot.work)

    def attempt(
        self, slots: Sequence[Slot[ItemT]], run: Callable[[list[Slot[ItemT]]], PieceT]
    ) -> list[tuple[list[Slot[ItemT]], PieceT]]:
        """Run a batch; if it raises, run each work's part alone and fail only those that raise.

        Returns the parts that succeeded with what ``run`` returned for each.
        """
        alive = [slot for slot in slots if self.is_alive(slot)]
        if not alive:
            return []
        try:
            return [(alive, run(alive))]
        except Exception as error:
            parts = _by_work(alive)
            if len(parts) == 1:
                self.fail(alive[0].work, error)
                return []
        alone = partial(self.attempt, run=run)
        return [done for part in parts for done in alone(part)]

    def drain(self) -> list[EngineOutput]:
        """Return and forget the outputs of all work that has ended."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _end(self, id_: WorkId) -> None:
        work = self._works.pop(id_)
        try:
            value = self._finish(work.request, [work.results[i] for i in range(work.size)])
        except Exception as error:
            self.fail(id_, error)
        else:
            self._outputs.append(EngineOutput(id_, "final", value=value))


def _take_share(work: _Work[ItemT, ResultT], share: int, taken: list[Slot[ItemT]]) -> int:
    spent = 0
    while work.todo and (spent == 0 or spent + work.todo[0].cost <= share):
        slot = work.todo.popleft()
        spent += slot.cost
        taken.append(slot)
    work.todo_cost -= spent
    return spent


def _by_work(slots: Iterable[Slot[ItemT]]) -> list[list[Slot[ItemT]]]:
    parts: dict[WorkId, list[Slot[ItemT]]] = {}
    for slot in slots:
        parts.setdefault(slot.work, []).append(slot)
    return list(parts.values())
