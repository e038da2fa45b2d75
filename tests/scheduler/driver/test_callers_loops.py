"""Callers wait on loops of their own: several at once, closed too early, in debug mode."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest
from driver_harness import EMBEDDING, PATIENCE_S, Gate, Rig, held_back

from rag_accel.engine_api import EngineRequest, TextBatch, WorkId
from rag_accel.scheduler.driver import AsyncLeaf
from rag_accel.scheduler.messages import CallEnded, LeafArrived, NodeCancelled, NodeKey, NodeSpec
from rag_accel.testing import FakeEngine, vector_of


@pytest.fixture(params=[False, True], ids=["", "debug"])
def debug(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run a test once plainly and once with asyncio's debug mode."""
    return request.param


def submit(rig: Rig, text: str, engine: str = "e") -> tuple[AsyncLeaf, NodeKey]:
    def build(node: NodeKey) -> EngineRequest:
        return EngineRequest(WorkId(f"{node.request}"), "r", EMBEDDING, TextBatch((text,)))

    leaf = AsyncLeaf(rig.driver.later, build)
    rid = rig.driver.new_request()
    spec = NodeSpec("n", rig.e if engine == "e" else rig.b, EMBEDDING)
    rig.driver.submit(LeafArrived(rid, spec, rig.driver.now()), leaf)
    return leaf, NodeKey(rid, "n")


async def compute_all(rig: Rig, name: str, count: int) -> None:
    leaves = [submit(rig, f"{name} {n}")[0] for n in range(count)]
    await asyncio.gather(*(leaf.wait() for leaf in leaves))
    for n, leaf in enumerate(leaves):
        assert leaf.result is not None
        assert (leaf.result.value == [vector_of(f"{name} {n}")]).all()


def gather(rig: Rig, text: str) -> tuple[AsyncLeaf, NodeKey]:
    """Bring in a leaf together with those of the other tasks."""

    def build(node: NodeKey) -> EngineRequest:
        return EngineRequest(WorkId(f"{node.request}"), "r", EMBEDDING, TextBatch((text,)))

    leaf = AsyncLeaf(rig.driver.later, build)
    rid = rig.driver.new_request()
    event = LeafArrived(rid, NodeSpec("n", rig.e, EMBEDDING), rig.driver.now())
    rig.driver.submit_together(event, leaf)
    return leaf, NodeKey(rid, "n")


def test_tasks_that_run_in_one_turn_of_a_loop_share_a_batch(debug: bool) -> None:
    async def ask(rig: Rig, number: int) -> None:
        for _ in range(3):
            leaf, _ = gather(rig, f"text {number}")
            threading.Event().wait(0.001)  # the driver gets to look
            await leaf.wait()
            assert leaf.result is not None
            assert (leaf.result.value == [vector_of(f"text {number}")]).all()

    async def ask_all(rig: Rig) -> None:
        await asyncio.gather(*(ask(rig, number) for number in range(16)))

    with Rig() as rig:
        asyncio.run(ask_all(rig), debug=debug)
        assert [len(batch) for batch in rig.engine.batches] == [16, 16, 16]


def test_a_leaf_taken_back_before_it_was_brought_in_leaves_nothing(debug: bool) -> None:
    async def main(rig: Rig) -> None:
        leaf, key = gather(rig, "text")
        rig.driver.post(NodeCancelled(key))
        await leaf.wait()
        assert leaf.outcome == "cancelled"

    with Rig() as rig:
        asyncio.run(main(rig), debug=debug)
        rig.become_idle()


def test_what_a_loop_left_behind_is_brought_in_by_the_next_one() -> None:
    with Rig() as rig:
        loop = asyncio.new_event_loop()
        loop.call_soon(lambda: (gather(rig, "left behind"), loop.stop()))
        loop.run_forever()  # ends before it comes to hand over
        loop.close()

        async def ask() -> None:
            leaf, _ = gather(rig, "next")
            await leaf.wait()

        asyncio.run(ask())
        rig.become_idle()
        assert sum(len(batch) for batch in rig.engine.batches) == 2


def test_several_loops_and_threads_share_a_driver(debug: bool) -> None:
    errors: list[BaseException] = []

    def run(name: str, rig: Rig) -> None:
        try:
            asyncio.run(compute_all(rig, name, 40), debug=debug)
        except BaseException as error:
            errors.append(error)

    with Rig() as rig:
        threads = [threading.Thread(target=run, args=(f"loop {n}", rig)) for n in range(4)]
        for thread in threads:
            thread.start()
        for n in range(40):
            assert (rig.leaf(f"sync {n}").value() == [vector_of(f"sync {n}")]).all()
        for thread in threads:
            thread.join(PATIENCE_S)
        rig.become_idle()
    assert not errors


def test_results_for_one_loop_come_in_one_wake_up() -> None:
    gate = Gate()
    calls: list[object] = []

    async def main(rig: Rig) -> None:
        first, _ = submit(rig, "first")
        await asyncio.to_thread(gate.wait_until_entered)
        leaves = [submit(rig, f"text {n}")[0] for n in range(30)]
        rig.settle()
        loop = asyncio.get_running_loop()
        plain = loop.call_soon_threadsafe

        def counted(*args: object, **options: object) -> object:
            calls.append(args)
            return plain(*args, **options)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        gate.open()
        await asyncio.gather(first.wait(), *(leaf.wait() for leaf in leaves))
        del loop.call_soon_threadsafe

    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        asyncio.run(main(rig))
    assert len(calls) == 2


def test_a_loop_closed_while_its_task_waits_harms_no_other() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        loop = asyncio.new_event_loop()

        async def begin() -> AsyncLeaf:
            return submit(rig, "left behind")[0]

        leaf = loop.run_until_complete(begin())
        gate.wait_until_entered()
        other = rig.leaf("other")
        loop.close()
        gate.open()
        other.value()
        rig.become_idle()
        assert leaf.outcome == "done"
        assert rig.driver.internal_errors == 0


def test_who_is_let_in_on_a_closed_loop_can_give_the_permit_back() -> None:
    with Rig(max_concurrency=1) as rig:
        first = rig.leaf(engine="b")
        assert first.may_run.wait(PATIENCE_S)
        loop = asyncio.new_event_loop()
        rid = rig.driver.new_request()
        lost = CallEnded(NodeKey(rid, "n"), rig.b, ok=False)

        async def begin() -> None:
            leaf = AsyncLeaf(rig.driver.later, lost=lambda: rig.driver.post(lost))
            rig.driver.submit(
                LeafArrived(rid, NodeSpec("n", rig.b, EMBEDDING), rig.driver.now()), leaf
            )

        loop.run_until_complete(begin())
        loop.close()
        rig.end_call(first)
        third = rig.leaf(engine="b")
        assert third.may_run.wait(PATIENCE_S)
        rig.end_call(third)
        rig.become_idle()


def test_a_task_cancelled_while_it_waits_may_be_told_later() -> None:
    gate = Gate()

    async def main(rig: Rig) -> None:
        leaf, _ = submit(rig, "text")
        task = asyncio.ensure_future(leaf.wait())
        await asyncio.to_thread(gate.wait_until_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await asyncio.to_thread(rig.become_idle)

    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        asyncio.run(main(rig), debug=True)
    gc.collect()
