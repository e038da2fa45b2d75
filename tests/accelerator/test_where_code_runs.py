"""User code runs where its caller is: his thread, his loop, his context; else in our threads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from accel_harness import PATIENCE_S, WAYS, Gate, chain, function_graph, opened

from rag_accel import END, START, RAGraph
from rag_accel.testing import FakeAsyncCall, FakeSyncCall

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

user: ContextVar[str] = ContextVar("user")


def borrowed_chain(length: int) -> RAGraph:
    stages = [lambda g, name: g.add_generation(name, prompt="{input}") for _ in range(length)]
    return chain(*stages)


def fan_out(*fns: Callable[..., Any]) -> RAGraph:
    graph = RAGraph()
    for place, fn in enumerate(fns):
        graph.add_function(f"f{place}", fn, inputs="input")
        graph.add_edge(START, f"f{place}").add_edge(f"f{place}", END)
    return graph


@pytest.mark.parametrize("make", [FakeSyncCall, FakeAsyncCall])
@anyhow
def test_a_function_sees_the_callers_context(way: Way, make: Any) -> None:
    fn = make(context_var=user)
    user.set("alice")
    with opened() as acc:
        way(acc, function_graph(fn), input="x")
    assert fn.calls[0].context_value == "alice"


@pytest.mark.parametrize("make", [FakeSyncCall, FakeAsyncCall])
def test_run_uses_the_callers_thread_for_one_call_after_the_other(make: Any) -> None:
    llm = make()
    with opened(llm=llm) as acc:
        for _ in range(20):
            acc.run(borrowed_chain(5), input="x")
    assert {call.thread_id for call in llm.calls} == {threading.get_ident()}


def test_what_run_calls_in_the_callers_thread_may_change_its_context() -> None:
    user.set("before")
    with opened() as acc:
        acc.run(function_graph(lambda text: user.set("after")), input="x")
    assert user.get() == "after"


def test_run_inside_a_loop_leaves_async_calls_to_our_threads() -> None:
    llm = FakeAsyncCall()

    async def main() -> None:
        acc.run(borrowed_chain(2), input="x")

    with opened(llm=llm) as acc:
        asyncio.run(main())
    assert threading.get_ident() not in {call.thread_id for call in llm.calls}


def test_run_leaves_the_threads_own_event_loop_alone() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with opened() as acc:
            acc.run(function_graph(FakeAsyncCall()), input="x")
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_arun_calls_sync_code_in_our_threads_not_in_the_loops_executor() -> None:
    names: list[str] = []

    async def main() -> None:
        graph = function_graph(lambda text: names.append(threading.current_thread().name))
        await acc.arun(graph, input="x")
        assert asyncio.get_running_loop()._default_executor is None  # type: ignore[attr-defined]

    with opened() as acc:
        asyncio.run(main())
    assert all(name.startswith("rag-accel-call") for name in names)
    assert names


@anyhow
def test_no_code_of_a_callable_object_runs_on_the_schedulers_thread(way: Way) -> None:
    names: list[str] = []

    class Asked:
        def __getattribute__(self, name: str) -> Any:
            names.append(threading.current_thread().name)
            return object.__getattribute__(self, name)

        def __call__(self, text: str) -> str:
            names.append(threading.current_thread().name)
            return text

    with opened() as acc:
        assert way(acc, function_graph(Asked()), input="x") == "x"
    assert names
    assert "rag-accel-driver" not in names


@pytest.mark.parametrize("kind", ["partial", "method", "object", "sync that returns it"])
def test_async_callables_of_every_kind_are_awaited_on_the_callers_loop(kind: str) -> None:
    call = FakeAsyncCall()
    fn: Callable[..., Any] = {
        "partial": functools.partial(call.__call__, "bound"),
        "method": call.__call__,
        "object": call,
        "sync that returns it": lambda text: call(text),
    }[kind]

    async def main() -> None:
        await acc.arun(function_graph(fn), input="x")
        assert call.calls[0].loop is asyncio.get_running_loop()
        assert call.calls[0].thread_id == threading.get_ident()

    with opened() as acc:
        asyncio.run(main())


def test_submit_calls_in_our_threads_with_the_context_of_that_moment() -> None:
    fn = FakeSyncCall(context_var=user)
    gate = Gate()
    user.set("then")
    graph = chain(
        lambda g, name: g.add_function(name, lambda text: gate() or text, inputs="input"),
        lambda g, name: g.add_function(name, fn, inputs="input"),
    )
    with opened() as acc, gate:
        handle = acc.submit(graph, input="x")
        gate.wait_until_entered()
        user.set("now")
        gate.open()
        handle.result(PATIENCE_S)
    assert fn.calls[0].context_value == "then"
    assert fn.calls[0].thread_id != threading.get_ident()


@anyhow
def test_sync_functions_side_by_side_really_overlap(way: Way) -> None:
    barrier = threading.Barrier(3)
    fns = [lambda text: barrier.wait(PATIENCE_S) is None for _ in range(3)]
    with opened() as acc:
        way(acc, fan_out(*fns), input="x")


def test_async_functions_side_by_side_really_overlap() -> None:
    async def main() -> None:
        barrier = asyncio.Barrier(3)

        async def meet(text: str) -> None:
            await asyncio.wait_for(barrier.wait(), PATIENCE_S)

        await acc.arun(fan_out(meet, meet, meet), input="x")

    with opened() as acc:
        asyncio.run(main())


def test_contexts_of_calls_side_by_side_are_apart() -> None:
    barrier = threading.Barrier(2)

    def change(text: str, name: str) -> str:
        user.set(name)
        barrier.wait(PATIENCE_S)
        return user.get()

    user.set("caller")
    fns = [lambda text: change(text, "one"), lambda text: change(text, "other")]
    with opened() as acc:

        async def main() -> None:
            assert await acc.arun(fan_out(*fns), input="x") == {"f0": "one", "f1": "other"}
            assert user.get() == "caller"

        asyncio.run(main())


def test_a_blocked_loop_keeps_no_other_waiting() -> None:
    served = threading.Event()

    async def main() -> None:
        task = asyncio.ensure_future(acc.arun(function_graph(lambda text: text), input="x"))
        await asyncio.sleep(0)
        assert served.wait(PATIENCE_S)  # the loop stands still until the other caller is served
        assert await task == "x"

    def other() -> None:
        for n in range(20):
            assert acc.run(function_graph(lambda text: text), input=str(n)) == str(n)
        served.set()

    with opened() as acc:
        thread = threading.Thread(target=other)
        thread.start()
        asyncio.run(main())
        thread.join(PATIENCE_S)
