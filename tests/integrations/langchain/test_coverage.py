"""``coverage()`` tells what of a LangChain program passes the scheduler, and what reads options."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from lc_fakes import AsyncChat, FakeEmbeddings, SyncChat, SyncRetriever
from lc_programs import ensemble, model_chain, retrieval_chain

from langchain_rag_accel import accelerate, activate, coverage
from langchain_rag_accel.coverage import Coverage
from rag_accel import Accelerator

INPUT = {"input": "question one"}


def test_the_master_switch_is_a_reason(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    monkeypatch.setenv("RAG_ACCEL", "0")
    with coverage(fast) as seen:
        fast.invoke(INPUT)
    assert [one.reason for one in seen.calls] == ["RAG_ACCEL is off"]


def test_blocks_of_one_view_add_up_and_leave_no_patch(accelerator: Accelerator) -> None:
    model = SyncChat()
    before = SyncChat._generate
    seen = coverage(model)
    for _ in range(2):
        with seen:
            model.invoke("x")
    assert seen.passed_by == 2
    assert SyncChat._generate is before


class Asked(TypedDict):
    input: str


def graph() -> Any:
    made: Any = StateGraph(Asked)
    made.add_node("ask", lambda state: {"input": SyncChat().invoke(state["input"]).content})
    return made.add_edge(START, "ask").compile()


def ask(*programs: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        for program in programs:
            list(pool.map(program.invoke, [INPUT] * 2))


def counts(seen: Coverage) -> tuple[int, int, int]:
    return seen.scheduled, seen.borrowed, seen.passed_by


def test_calls_of_its_program_in_threads_of_a_pool_count(accelerator: Accelerator) -> None:
    for program in (retrieval_chain(), graph()):
        fast = accelerate(program, accelerator=accelerator)
        with coverage(fast) as here:
            fast.invoke(INPUT)
            fast.invoke(INPUT)
        with coverage(fast) as seen:
            ask(fast)
        assert seen.borrowed > 0
        assert seen.rows() == here.rows()
        assert str(seen) == str(here)


def test_blocks_of_two_programs_count_the_calls_of_their_own(accelerator: Accelerator) -> None:
    ada = accelerate(retrieval_chain(), accelerator=accelerator)
    bob = accelerate(model_chain(), accelerator=accelerator)
    with coverage(ada) as of_ada, coverage(bob) as of_bob:
        ask(ada, bob)
    assert (counts(of_ada), counts(of_bob)) == ((0, 4, 0), (0, 2, 0))


def test_options_are_seen_before_a_run() -> None:
    with Accelerator(parallel_calls=False) as accelerator:
        fast = accelerate(ensemble(), accelerator=accelerator)
        seen = {one.option: one for one in coverage(fast).options}
    assert str(seen["parallel_calls"]) == "parallel_calls=False: program.1: EnsembleRetriever"
    assert seen["parallel_calls"].is_given
    assert str(seen["kv_reuse"]) == "kv_reuse='exact': no part reads it"


def test_an_option_that_no_part_reads_is_printed_if_it_was_given() -> None:
    seen = coverage(model_chain())
    assert "adopt_llm" not in str(seen)
    with Accelerator(adopt_llm="batched") as accelerator, activate(accelerator):
        assert "  adopt_llm='batched': no part reads it" in str(seen).splitlines()


# What is counted --------------------------------------------------------------------------------


def test_the_report_names_what_was_borrowed_and_what_passed_by(accelerator: Accelerator) -> None:
    fast = accelerate(SyncRetriever(), accelerator=accelerator)
    with coverage() as meter:
        fast.invoke("x")
        SyncRetriever().invoke("x")
    head, *lines = str(meter).splitlines()
    assert head.startswith("calls: 0 scheduled (queued on an owned engine), 1 borrowed")
    assert head.endswith("1 passed by")
    method = "SyncRetriever._get_relevant_documents"
    assert lines == [
        f"  {method}: 1 borrowed: no engine of this library computes what this class does",
        f"  {method}: 1 passed by: outside of an accelerated program and of activate()",
    ]


# Cancelled callers, and views inside of each other ----------------------------------------------


async def test_a_cancelled_caller_leaves_its_block(accelerator: Accelerator) -> None:
    begun = asyncio.Event()

    async def wait(given: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    fast = accelerate(RunnableLambda(wait), accelerator=accelerator)
    seen = coverage(fast)

    async def ask() -> None:
        with seen:
            await fast.ainvoke("x")

    task = asyncio.create_task(ask())
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await AsyncChat().ainvoke("x")
    assert seen.passed_by == 0


async def test_a_plain_coroutine_that_is_cancelled_hides_no_later_call() -> None:
    begun = asyncio.Event()

    class Slow(FakeEmbeddings):
        async def aembed_query(self, text: str) -> list[float]:
            begun.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

    embeddings = Slow()
    with coverage() as seen:
        task = asyncio.create_task(embeddings.aembed_query("x"))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        embeddings.embed_query("x")
    assert [(one.method, one.passed_by) for one in seen.calls] == [
        ("aembed_query", 1),
        ("embed_query", 1),
    ]


def test_an_inner_block_takes_its_calls_from_the_outer(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    with coverage(fast) as outer:
        with coverage(fast) as inner:
            fast.invoke(INPUT)
        fast.invoke(INPUT)
    assert (outer.borrowed, inner.borrowed) == (1, 1)


def test_accelerated_inside_of_plain_is_scheduled_as_without_a_view(
    accelerator: Accelerator,
) -> None:
    inner = accelerate(FakeEmbeddings(), accelerator=accelerator)

    class Outer(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            return inner.embed_query(text)

    with coverage() as seen:
        Outer().embed_query("x")
    assert (seen.borrowed, seen.passed_by) == (1, 1)
