"""Closing an accelerator ends all its callers with ClosedError, promptly, and all its threads."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import (
    PATIENCE_S,
    TEXT_WAYS,
    Gate,
    function_graph,
    generation_graph,
    reply,
)
from ends_kit import in_thread

from rag_accel import Accelerator, ClosedError, ConfigError
from rag_accel.testing import FakeAsyncCall, FakeEngine

Way = Callable[..., Any]


@pytest.mark.parametrize("way", TEXT_WAYS.values(), ids=TEXT_WAYS.keys())
def test_a_caller_whose_engine_hangs_is_told(way: Way) -> None:
    with Gate() as gate, Accelerator(llm=FakeEngine(compute=gate), shutdown_s=0.05) as acc:
        thread, found = in_thread(lambda: way(acc, generation_graph(), input="x"))
        gate.wait_until_entered()
        acc.close()
        thread.join(PATIENCE_S)
        assert isinstance(found[0], ClosedError)


@pytest.mark.parametrize("way", ["arun", "astream"])
def test_a_task_whose_own_coroutine_runs_is_told_and_the_coroutine_cancelled(way: str) -> None:
    unwound: list[str] = []

    async def work(text: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(text)

    began = threading.Event()
    with Accelerator() as acc:
        thread, found = in_thread(lambda: TEXT_WAYS[way](acc, function_graph(work), input="x"))
        assert began.wait(PATIENCE_S)
        acc.close()
        thread.join(PATIENCE_S)
    assert isinstance(found[0], ClosedError)
    assert unwound == ["x"]


def test_all_threads_end() -> None:
    # An accelerator of another test may await its collection still.
    before = set(threading.enumerate())
    engine = FakeEngine()
    acc = Accelerator(llm=engine, index=FakeEngine(), embedder=FakeEngine())
    acc.submit(function_graph(str), input="x").result(PATIENCE_S)
    started = set(threading.enumerate()) - before
    assert len(started) >= 5
    acc.close()
    assert engine.is_closed
    for thread in started:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("way", TEXT_WAYS.values(), ids=TEXT_WAYS.keys())
def test_a_closed_accelerator_takes_no_more(way: Way) -> None:
    acc = Accelerator(llm=FakeEngine())
    acc.close()
    acc.close()
    assert acc.closed
    with pytest.raises(ClosedError):
        way(acc, generation_graph(), input="x")
    with pytest.raises(ClosedError):
        acc.add_engine("late", FakeEngine())


def test_a_function_may_close_the_accelerator_it_runs_in() -> None:
    for way in TEXT_WAYS.values():
        acc = Accelerator(shutdown_s=0.05)
        with pytest.raises(ClosedError):
            way(acc, function_graph(lambda text, acc=acc: acc.close()), input="x")


def test_an_accelerator_without_references_is_closed() -> None:
    engine = FakeEngine()
    acc = Accelerator(llm=engine)
    acc.run(generation_graph(), input="x")
    ref = weakref.ref(acc)
    del acc
    gc.collect()
    assert ref() is None
    for thread in threading.enumerate():
        if thread.name.startswith("rag-accel"):
            thread.join(PATIENCE_S)
    assert engine.is_closed


def test_one_that_cannot_be_made_closes_the_engines_it_had_taken() -> None:
    engine = FakeEngine()
    with pytest.raises(ConfigError):
        Accelerator(llm=engine, index="no engine")
    for thread in threading.enumerate():
        if thread.name.startswith("rag-accel"):
            thread.join(PATIENCE_S)
    assert engine.is_closed


def test_a_copy_is_the_same_and_a_pickle_has_the_options() -> None:
    with Accelerator(max_batch=7) as acc:
        assert copy.copy(acc) is acc
        assert copy.deepcopy({"acc": acc})["acc"] is acc
        with pickle.loads(pickle.dumps(acc)) as other:
            assert other is not acc
            assert other.options == acc.options


def test_closing_from_a_task_does_not_hang_its_loop() -> None:
    async def main() -> None:
        acc = Accelerator(llm=FakeAsyncCall(reply))
        assert await acc.arun(generation_graph(), input="x") == reply("x")
        acc.close()
        # All of this room runs like that; a call from a wrong thread would have raised.
        assert asyncio.get_running_loop().get_debug()

    asyncio.run(main())
