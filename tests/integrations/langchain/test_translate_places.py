"""A translated program runs where its caller is, side by side where it may, once where it must."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from lc_fakes import TENANT, SyncChat, TenantRetriever, here
from lc_programs import QUESTION, joined
from lc_translating import translated

from rag_accel import Accelerator
from rag_accel.accelerator import current_request

INPUT = {"input": "question one"}


# Threads, loops and contexts ------------------------------------------------------------------


def test_a_line_runs_in_the_callers_thread(accelerator: Accelerator) -> None:
    found = translated(RunnableLambda(lambda _: here()) | RunnablePassthrough(), accelerator)
    assert found.invoke(INPUT).thread == threading.get_ident()


async def test_a_blocking_call_inside_a_loop_stays_in_its_thread(accelerator: Accelerator) -> None:
    step = RunnableLambda(lambda _: here())
    program = RunnableParallel(a=step, b=step) | RunnableLambda(lambda both: (both, here()))
    both, last = translated(program, accelerator).invoke(INPUT)
    assert threading.get_ident() in {both["a"].thread, both["b"].thread}
    assert last.thread in {both["a"].thread, both["b"].thread, threading.get_ident()}


async def test_async_parts_run_on_the_callers_loop_and_thread(accelerator: Accelerator) -> None:
    async def where(_: Any) -> Any:
        return here()

    program = RunnableParallel(a=RunnableLambda(where), b=RunnableLambda(where))
    found = await translated(program, accelerator).ainvoke(INPUT)
    for place in found.values():
        assert place.thread == threading.get_ident()
        assert place.loop is asyncio.get_running_loop()


async def test_every_part_sees_the_callers_context(accelerator: Accelerator) -> None:
    found = itemgetter("input") | TenantRetriever() | joined
    fast = translated(RunnableParallel(a=found, b=found) | itemgetter("b"), accelerator)
    token = TENANT.set("acme")
    try:
        assert fast.invoke(INPUT) == "acme: question one"
        assert await fast.ainvoke(INPUT) == "acme: question one"
    finally:
        TENANT.reset(token)


def test_what_a_part_sets_is_seen_by_no_other(accelerator: Accelerator) -> None:
    var: ContextVar[str] = ContextVar("var", default="unset")

    def change(given: Any) -> Any:
        before = var.get()
        var.set("changed")
        return [*given, before]

    program = RunnableLambda(change) | change | RunnableParallel(a=change, b=change)
    expected = program.invoke([])
    assert translated(program, accelerator).invoke([]) == expected
    assert var.get() == "unset"


class Attaching(BaseCallbackHandler):
    """Set a variable while a run lasts, as tracers do, and reset it where it was set."""

    run_inline = True
    raise_error = True
    var: ContextVar[str] = ContextVar("attached", default="")

    def __init__(self) -> None:
        self.tokens: dict[Any, Any] = {}
        self.seen: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        if kwargs["name"] in ("whole", "RunnableParallel<a,b>"):
            outer = self.var.get()
            self.tokens[kwargs["run_id"]] = self.var.set(f"{outer}/{kwargs['name']}")

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        token = self.tokens.pop(kwargs["run_id"], None)
        if token is not None:
            self.var.reset(token)


def test_a_handler_resets_what_it_set_in_the_context_it_set_it_in(
    accelerator: Accelerator,
) -> None:
    def attached(given: Any) -> str:
        return Attaching.var.get()

    inner = RunnableParallel(a=attached, b=attached) | RunnableLambda(itemgetter("a"))
    program = (RunnablePassthrough() | RunnablePassthrough.assign(x=inner)).with_config(
        run_name="whole"
    )
    expected = program.invoke(INPUT, {"callbacks": [Attaching()]})
    fast = translated(program, accelerator)
    found = fast.invoke(INPUT, {"callbacks": [Attaching()]})
    assert found == expected
    assert found["x"] == "/whole/RunnableParallel<a,b>"
    assert Attaching.var.get() == ""


# Side by side ---------------------------------------------------------------------------------


def test_branches_of_a_blocking_call_run_side_by_side(accelerator: Accelerator) -> None:
    barrier = threading.Barrier(3, timeout=10.0)

    def meet(given: Any) -> int:
        return barrier.wait()

    inner = RunnablePassthrough.assign(a=meet, b=RunnablePassthrough() | meet)
    program = RunnableParallel(x=inner, y=RunnableLambda(meet))
    found = translated(program, accelerator).invoke(INPUT)
    assert {found["x"]["a"], found["x"]["b"], found["y"]} == {0, 1, 2}


def test_leaves_belong_to_the_request_of_their_program(accelerator: Accelerator) -> None:
    seen: list[Any] = []

    class Noting(SyncChat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            identity = current_request.get()
            seen.append(None if identity is None else identity.request)
            return super()._generate(*args, **kwargs)

    chain = QUESTION | Noting() | StrOutputParser()
    program = RunnablePassthrough.assign(a=chain, b=chain) | chain
    translated(program, accelerator).invoke(INPUT)
    assert len(seen) == 3
    assert None not in seen
    assert len(set(seen)) == 1


def test_a_call_inside_another_accelerated_run_is_part_of_it(accelerator: Accelerator) -> None:
    requests: list[Any] = []

    def note(given: Any) -> Any:
        identity = current_request.get()
        requests.append(identity.request if identity is not None else None)

    inner = translated(RunnableParallel(a=note, b=note), accelerator)
    outer = RunnableParallel(x=RunnableLambda(inner.invoke), y=RunnableLambda(note))
    translated(outer, accelerator).invoke(INPUT)
    assert len(requests) == 3
    assert len(set(requests)) == 1


def test_many_programs_of_a_full_accelerator_finish(recwarn: Any) -> None:
    with Accelerator(strict=True, max_requests=1) as accelerator:
        inner = translated(RunnableParallel(a=len, b=len), accelerator)
        outer = translated(RunnableParallel(x=RunnableLambda(inner.invoke), y=len), accelerator)
        assert outer.batch([INPUT] * 4) == [{"x": {"a": 1, "b": 1}, "y": 1}] * 4
