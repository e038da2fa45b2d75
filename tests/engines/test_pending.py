"""Bookkeeping of items that are computed together and end apart."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import EngineRequest, PrimitiveKind, WorkId
from rag_accel.engines.pending import PendingWork, Slot


def request(name: str) -> EngineRequest:
    return EngineRequest(WorkId(name), name, PrimitiveKind.EMBEDDING, None)


def joined(request: EngineRequest, results: list[str]) -> str:
    return "".join(results)


def upper(slots: list[Slot[str]]) -> list[str]:
    if any(slot.item == "!" for slot in slots):
        raise ValueError("!")
    return [slot.item.upper() for slot in slots]


def compute(pending: PendingWork[str, str], limit: int) -> None:
    for part, results in pending.attempt(pending.take(limit), upper):
        for slot, result in zip(part, results, strict=True):
            pending.settle(slot, result)


@given(
    work_items=st.lists(st.lists(st.integers(1, 9), max_size=8), max_size=6),
    limit=st.integers(1, 40),
)
def test_every_work_ends_once_with_its_items_in_order(work_items: Any, limit: int) -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    for i, costs in enumerate(work_items):
        pending.add(request(f"w{i}"), [chr(97 + c) for c in costs], costs)
    ended: dict[str, object] = {}
    for _ in range(sum(map(len, work_items)) + 1):
        compute(pending, limit)
        for output in pending.drain():
            assert output.id not in ended
            ended[output.id] = output.value
    assert ended == {
        f"w{i}": "".join(chr(97 + c) for c in costs).upper() for i, costs in enumerate(work_items)
    }


@given(
    work_items=st.lists(
        st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=6
    ),
    limit=st.integers(1, 40),
)
def test_taking_serves_every_work_and_keeps_near_the_limit(work_items: Any, limit: int) -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    for i, costs in enumerate(work_items):
        pending.add(request(f"w{i}"), ["x"] * len(costs), costs)
    taken = pending.take(limit)
    assert {slot.work for slot in taken} == {f"w{i}" for i in range(len(work_items))}
    assert sum(slot.cost for slot in taken) <= limit + sum(min(costs) for costs in work_items)


def test_what_small_works_leave_goes_to_the_large_one() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    pending.add(request("large"), ["x"] * 50, [1] * 50)
    pending.add(request("small"), ["y"] * 2, [1] * 2)
    taken = [slot.work for slot in pending.take(20)]
    assert (taken.count(WorkId("small")), taken.count(WorkId("large"))) == (2, 18)


def test_a_failing_batch_is_tried_again_work_by_work() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    for name, items in (("a", "xy"), ("b", "x!"), ("c", "z")):
        pending.add(request(name), list(items), [1] * len(items))
    compute(pending, 100)
    found = {output.id: (output.kind, output.value) for output in pending.drain()}
    assert found == {"a": ("final", "XY"), "b": ("error", None), "c": ("final", "Z")}


def test_slots_put_back_are_taken_again_in_the_same_order() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    pending.add(request("a"), list("abc"), [1, 2, 3])
    first = pending.take(100)
    pending.put_back(first[1:])
    assert pending.take(100) == first[1:]


def test_slots_of_ended_work_are_neither_put_back_nor_computed() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    pending.add(request("a"), list("ab"), [1, 1])
    slots = pending.take(100)
    pending.cancel([WorkId("a")])
    pending.put_back(slots)
    pending.settle(slots[0], "A")
    assert pending.attempt(slots, upper) == []
    assert pending.take(100) == []
    assert pending.drain() == []


def test_cancelling_drops_an_end_that_was_not_reported_yet() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    pending.fail(WorkId("a"), ValueError("refused"))
    pending.add(request("b"), [], [])
    pending.cancel([WorkId("a"), WorkId("b"), WorkId("never seen")])
    assert pending.drain() == []


def test_work_without_items_ends_at_once() -> None:
    pending: PendingWork[str, str] = PendingWork(joined)
    pending.add(request("a"), [], [])
    assert [(output.kind, output.value) for output in pending.drain()] == [("final", "")]


def test_results_that_cannot_be_joined_are_the_error_of_that_work() -> None:
    fault = ValueError("ragged")

    def refuse(request: EngineRequest, results: list[str]) -> str:
        raise fault

    pending: PendingWork[str, str] = PendingWork(refuse)
    pending.add(request("a"), ["x"], [1])
    compute(pending, 1)
    (output,) = pending.drain()
    assert (output.kind, output.error) == ("error", fault)
