"""Classes are patched only while somebody needs it, and restored as they were."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from abc import ABCMeta
from functools import wraps
from typing import Any

import pytest
from idle_accelerators import soon_idle
from langchain_core.runnables import RunnableLambda
from lc_fakes import (
    AsyncChat,
    AsyncRetriever,
    FakeEmbeddings,
    StreamingChat,
    SyncChat,
)
from lc_programs import QUESTION, model_chain, retrieval_chain
from lc_waiting import wait_until

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator
from rag_accel.interception import patches as patching
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import leaf_methods
from rag_accel.interception.patches import leaf_classes, patches

INPUT = {"input": "question one"}


def _methods() -> dict[tuple[type, str], Any]:
    """Return what stands where leaves are patched."""
    return {
        (definer, leaf.name): definer.__dict__.get(leaf.name)
        for cls in leaf_classes()
        for leaf in leaf_methods(cls)
        for definer in cls.__mro__
        if leaf.name in definer.__dict__
    }


def test_a_collected_program_restores_its_classes(accelerator: Accelerator) -> None:
    before = _methods()
    fast = accelerate(retrieval_chain(), accelerator=accelerator)
    changed = {place for place, method in _methods().items() if before.get(place) is not method}
    assert {(AsyncChat, "_agenerate"), (AsyncRetriever, "_aget_relevant_documents")} <= changed
    del fast
    gc.collect()
    assert _methods() == before
    assert patches.patched() == []


def test_a_class_stays_patched_until_its_last_program_is_gone(accelerator: Accelerator) -> None:
    first = accelerate(model_chain(), accelerator=accelerator)
    second = accelerate(QUESTION | AsyncChat(), accelerator=accelerator)
    del first
    gc.collect()
    with coverage() as meter:
        second.invoke(INPUT)
    assert meter.passed_by == 0
    del second
    gc.collect()
    assert patches.patched() == []


def test_a_plain_call_of_a_patched_class_is_not_scheduled(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    with coverage() as meter:
        AsyncChat().invoke("x")
        model_chain().invoke(INPUT)
    assert [row.scheduled for row in meter.rows()] == [0]
    assert fast is not None


def test_a_method_replaced_meanwhile_stays_replaced(accelerator: Accelerator) -> None:
    class Own(SyncChat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            return super()._generate(*args, **kwargs)

    fast = accelerate(QUESTION | Own(), accelerator=accelerator)
    ours = Own._generate

    @wraps(ours)
    def users(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    Own._generate = users  # type: ignore[method-assign]
    with coverage() as meter:
        fast.invoke(INPUT)
    assert meter.passed_by == 0
    del fast
    gc.collect()
    assert Own.__dict__["_generate"] is users
    assert Own().invoke("x").content
    again = accelerate(QUESTION | Own(), accelerator=accelerator)
    assert again.invoke(INPUT).content


# activate() -------------------------------------------------------------------------------------


def test_a_block_patches_every_leaf_class_and_restores_them(accelerator: Accelerator) -> None:
    before = _methods()
    with activate(accelerator) as given:
        assert given is accelerator
        patched = set(patches.patched())
        assert {(SyncChat, "_generate"), (FakeEmbeddings, "embed_query")} <= patched
    assert _methods() == before
    assert patches.patched() == []


def test_a_block_restores_after_an_error(accelerator: Accelerator) -> None:
    before = _methods()
    with pytest.raises(ValueError, match="inside"), activate(accelerator):
        raise ValueError("inside")
    assert _methods() == before
    assert activated() is None


async def test_everything_in_a_block_is_scheduled_wherever_it_was_made(
    accelerator: Accelerator,
) -> None:
    def make_and_call(given: Any) -> str:
        return str(SyncChat().invoke(given["input"]).content)

    holder = {"model": AsyncChat()}
    programs = [
        model_chain(),
        retrieval_chain(),
        RunnableLambda(make_and_call),
        RunnableLambda(lambda given: holder["model"].invoke(given["input"]).content),
    ]
    with activate(accelerator), coverage() as meter:
        found = [program.invoke(INPUT) for program in programs]
        found += [await program.ainvoke(INPUT) for program in programs]
        FakeEmbeddings().embed_query("x")
        list(StreamingChat().stream("x"))
    assert found == [program.invoke(INPUT) for program in programs] * 2
    assert meter.passed_by == 0, str(meter)
    assert {row.kind: row.scheduled for row in meter.rows()} == {
        "chat model": 9,
        "embeddings": 1,
        "retriever": 2,
    }


def test_classes_defined_in_a_block_are_covered_and_restored(accelerator: Accelerator) -> None:
    with activate(accelerator):

        class New(SyncChat):
            def _generate(self, *args: Any, **kwargs: Any) -> Any:
                return super()._generate(*args, **kwargs)

        class NewEmbeddings(FakeEmbeddings):
            def embed_query(self, text: str) -> list[float]:
                return [1.0]

        with coverage() as meter:
            New().invoke("x")
            NewEmbeddings().embed_query("x")
    assert {row.kind: row.scheduled for row in meter.rows()} == {"chat model": 1, "embeddings": 1}
    assert meter.passed_by == 0
    assert "__rag_accel_original__" not in vars(New.__dict__["_generate"])
    assert New().invoke("x").content


def _engine_steps(accelerator: Accelerator) -> int:
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(engine["steps"] for engine in engines.values())


def test_a_call_belongs_to_the_innermost_block(accelerator: Accelerator) -> None:
    with Accelerator(strict=True) as inner:
        with activate(accelerator):
            SyncChat().invoke("outer")
            with activate(inner):
                SyncChat().invoke("inner")
                SyncChat().invoke("inner")
            SyncChat().invoke("outer")
        assert (_engine_steps(accelerator), _engine_steps(inner)) == (2, 2)


def test_blocks_of_several_threads_do_not_mix(accelerator: Accelerator) -> None:
    both_open, both_done = threading.Barrier(2), threading.Barrier(2)

    def work(own: Accelerator, calls: int) -> None:
        with activate(own):
            both_open.wait(5.0)
            for number in range(calls):
                SyncChat().invoke(str(number))
            both_done.wait(5.0)

    with Accelerator(strict=True) as other:
        threads = [
            threading.Thread(target=work, args=(accelerator, 3)),
            threading.Thread(target=work, args=(other, 5)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (_engine_steps(accelerator), _engine_steps(other)) == (3, 5)
    assert patches.patched() == []


def test_blocks_may_end_in_another_order_than_they_began(accelerator: Accelerator) -> None:
    before = _methods()
    first, second = activate(accelerator), activate(accelerator)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with coverage() as meter:
        SyncChat().invoke("x")
    assert meter.passed_by == 0
    second.__exit__(None, None, None)
    assert _methods() == before
    assert activated() is None


def test_a_thread_without_the_blocks_context_is_covered(accelerator: Accelerator) -> None:
    rows: list[Any] = []

    def work() -> None:
        with coverage() as meter:
            SyncChat().invoke("x")
        rows.extend(meter.rows())

    with activate(accelerator):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [(row.scheduled, row.passed_by) for row in rows] == [(1, 0)]


def test_a_block_may_end_in_another_context(accelerator: Accelerator) -> None:
    block = activate(accelerator)
    contextvars.copy_context().run(block.__enter__)
    with coverage() as meter:
        SyncChat().invoke("x")
    assert meter.passed_by == 0
    contextvars.copy_context().run(block.__exit__, None, None, None)
    assert activated() is None
    assert patches.patched() == []


async def test_tasks_made_before_a_block_are_covered_while_it_is_open(
    accelerator: Accelerator,
) -> None:
    go, meter_rows = asyncio.Event(), []

    async def serve() -> None:
        await go.wait()
        with coverage() as meter:
            await AsyncChat().ainvoke("x")
        meter_rows.extend(meter.rows())

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    with activate(accelerator):
        go.set()
        await task
    assert [row.scheduled for row in meter_rows] == [1]


def test_a_deadline_counts_from_each_call_not_from_the_block() -> None:
    with Accelerator(strict=True, deadline_s=0.2) as accelerator, activate(accelerator):
        started = accelerator._driver.now()
        SyncChat().invoke("x")
        wait_until(lambda: accelerator._driver.now() > started + 0.25, "the deadline")
        assert SyncChat().invoke("y").content


class Sealed(ABCMeta):
    def __setattr__(cls, name: str, value: Any) -> None:
        if "embed" in name:
            raise TypeError("sealed")
        super().__setattr__(name, value)


def test_a_class_that_cannot_be_patched_harms_no_program(accelerator: Accelerator) -> None:
    class Closed(FakeEmbeddings, metaclass=Sealed):
        def embed_query(self, text: str) -> list[float]:
            return [1.0]

    fast = accelerate(model_chain(), accelerator=accelerator)

    class LaterClosed(FakeEmbeddings, metaclass=Sealed):
        def embed_query(self, text: str) -> list[float]:
            return [2.0]

    with coverage() as meter:
        fast.invoke(INPUT)
    assert meter.passed_by == 0
    assert [Closed().embed_query("x"), LaterClosed().embed_query("x")] == [[1.0], [2.0]]


def test_an_interrupt_while_classes_are_patched_leaves_none_patched(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[type] = []

    def interrupted(cls: type) -> None:
        done.append(cls)
        if len(done) == 5:
            raise KeyboardInterrupt
        patch(cls)

    patch = patching._patch
    with monkeypatch.context() as broken:
        broken.setattr(patching, "_patch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accelerate(model_chain(), accelerator=accelerator)
    assert patches.patched() == []
    with coverage() as meter:
        accelerate(model_chain(), accelerator=accelerator).invoke(INPUT)
    assert meter.passed_by == 0
