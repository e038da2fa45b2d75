"""A plan of a LangChain program gives the program's results and tells what its leaves tell."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.router import RouterRunnable
from langgraph.graph import END, START, StateGraph
from lc_composites import CHAINS, HISTORY
from lc_fakes import (
    TENANT,
    AsyncChat,
    AsyncRetriever,
    SyncChat,
    TenantRetriever,
    here,
)
from lc_programs import PROGRAMS, QUESTION, joined, model_chain
from lc_recording import plain
from lc_runs import Runs, calls_of, compare_leaves, config_with, outcome, recorded, until

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator, ConfigError, DeadlineError, TranslationError, plan_of
from rag_accel.accelerator import current_request
from rag_accel.interception.patches import patches
from rag_accel.leaves.identity import current_depth

INPUT = {"input": "question one"}
WAYS = ("run", "arun")
UNDECLARED = {"configurable fields", "configurable alternatives", "generator step", "map"}


class AskingRetriever(AsyncRetriever):
    """Ask a model without passing on callbacks: who hears of it is a matter of the context."""

    model: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return super()._get_relevant_documents(
            self.model.invoke(query).text, run_manager=run_manager
        )

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        asked = await self.model.ainvoke(query)
        return await super()._aget_relevant_documents(asked.text, run_manager=run_manager)


def kwargs_for_the_first_step() -> Runnable[Any, Any]:
    chain = RunnableLambda(str.upper) | AsyncChat()
    first = (AsyncChat() | StrOutputParser()).bind(stop=["to"])
    return itemgetter("input") | RunnableParallel(a=first, b=first.bind(stop=["answer"]), c=chain)


def nothing_side_by_side() -> Runnable[Any, Any]:
    empty: Any = RunnableParallel({})
    return RunnablePassthrough.assign() | RunnableParallel(only=model_chain(), none=empty)


def odd_keys() -> Runnable[Any, Any]:
    inner: Any = RunnableParallel({"b": len, "c#": len})
    both: Any = RunnableParallel({"a": inner, "a.b": len, "START": len, "": len, "input": len})
    return itemgetter("input") | both


def inherited_callbacks() -> Runnable[Any, Any]:
    inner = (itemgetter("input") | AskingRetriever(model=AsyncChat())).with_config(run_name="inner")
    return inner | joined | RunnableParallel(a=AskingRetriever(model=AsyncChat()), b=len)


def routed() -> Runnable[Any, Any]:
    routes: Any = RouterRunnable({"a": model_chain(), "b": RunnableLambda(len)})
    return RunnableParallel(key=lambda _: "a", input=RunnablePassthrough()) | routes


MORE: dict[str, Callable[[], Runnable[Any, Any]]] = {
    "keyword arguments for the first step": kwargs_for_the_first_step,
    "nothing side by side": nothing_side_by_side,
    "odd keys": odd_keys,
    "inherited callbacks": inherited_callbacks,
    "router": routed,
    "usage": lambda: (
        itemgetter("input")
        | RunnableLambda(
            lambda text: AIMessage(
                text, usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
            )
        )
        | RunnablePassthrough()
    ),
}
DECLARED = {**{n: p for n, p in PROGRAMS.items() if n not in UNDECLARED}, **MORE}


def _way(accelerator: Accelerator, way: str) -> Any:
    return getattr(accelerator, way)


@pytest.mark.cross_product(keep=13)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DECLARED)
async def test_results_and_leaves_are_those_of_the_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    program, plan = DECLARED[name](), plan_of(DECLARED[name]())
    of_program, expected = await recorded(program.invoke, program.ainvoke, way, INPUT)
    with coverage() as meter:
        of_plan, found = await recorded(*calls_of(plan, accelerator), way, INPUT)
    assert expected[0] == "returned", expected
    assert plain(found) == plain(expected)
    compare_leaves(program, of_program, of_plan)
    assert of_plan.open() == []
    assert meter.passed_by == 0, str(meter)


@pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")
@pytest.mark.cross_product(keep=7)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHAINS)
async def test_chains_of_langchains_own_helpers_are_declared(
    name: str, way: str, accelerator: Accelerator
) -> None:
    given = {"input": "question one", "chat_history": HISTORY}
    program, plan = CHAINS[name](), plan_of(CHAINS[name]())
    of_program, expected = await recorded(program.invoke, program.ainvoke, way, given)
    of_plan, found = await recorded(*calls_of(plan, accelerator), way, given)
    assert expected[0] == "returned", expected
    assert plain(found) == plain(expected)
    compare_leaves(program, of_program, of_plan, is_ordered=False)


# Places, threads and contexts --------------------------------------------------------------------


async def test_async_parts_run_on_the_callers_loop_and_thread(accelerator: Accelerator) -> None:
    async def where(_: Any) -> Any:
        return here()

    program = RunnableParallel(a=RunnableLambda(where), b=RunnableLambda(where))
    found = await accelerator.arun(plan_of(program), input=INPUT)
    for place in found.values():
        assert place.thread == threading.get_ident()
        assert place.loop is asyncio.get_running_loop()


@pytest.mark.parametrize("way", WAYS)
async def test_every_part_sees_the_callers_context(way: str, accelerator: Accelerator) -> None:
    found = itemgetter("input") | TenantRetriever() | joined
    plan = plan_of(RunnableParallel(a=found, b=found) | itemgetter("b"))
    token = TENANT.set("acme")
    try:
        assert (await outcome(_way(accelerator, way), plan, input=INPUT))[1] == "acme: question one"
    finally:
        TENANT.reset(token)


def test_leaves_belong_to_one_request_of_the_plans_accelerator(accelerator: Accelerator) -> None:
    seen: list[Any] = []

    class Noting(SyncChat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(current_request.get())
            return super()._generate(*args, **kwargs)

    chain = QUESTION | Noting() | StrOutputParser()
    accelerator.run(plan_of(RunnablePassthrough.assign(a=chain, b=chain) | chain), input=INPUT)
    assert len(seen) == 3
    assert len({id(identity) for identity in seen}) == 1
    assert seen[0].accelerator is accelerator
    assert seen[0].has_ended
    assert current_request.get() is None


@pytest.mark.parametrize("way", WAYS)
async def test_leaves_are_as_far_from_the_end_as_their_stages(
    way: str, accelerator: Accelerator
) -> None:
    step = RunnableLambda(lambda depths: [*depths, current_depth()])
    plan = plan_of(step | step | step)
    assert await outcome(_way(accelerator, way), plan, input=[]) == ("returned", [2, 1, 0])


def test_a_plan_inside_an_accelerated_program_leaves_that_programs_request(
    accelerator: Accelerator,
) -> None:
    seen: list[Any] = []
    plan = plan_of(RunnableLambda(lambda given: seen.append(current_request.get()) or given))

    def run(given: Any) -> Any:
        outer = current_request.get()
        accelerator.run(plan, input=given)
        assert current_request.get() is outer
        return outer

    outer = accelerate(RunnableLambda(run), accelerator=accelerator).invoke(INPUT)
    assert seen[0] is not outer


@pytest.mark.parametrize("make", [model_chain, lambda: _langgraph()])
def test_leaf_calls_are_intercepted_while_the_plan_lives(make: Callable[[], Any]) -> None:
    plan = plan_of(make())
    assert patches.patched()
    del plan
    gc.collect()
    assert not patches.patched()


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_is_the_same_object(way: str, accelerator: Accelerator) -> None:
    error = ValueError("broken")
    plan = plan_of(RunnableParallel(a=QUESTION | AsyncChat(error=error), b=len) | len)
    runs = Runs()
    found = await outcome(_way(accelerator, way), plan, input=INPUT, config=config_with(runs))
    assert found == ("raised", error)
    await until(lambda: runs.open() == [])


@pytest.mark.parametrize("way", WAYS)
async def test_an_assign_takes_dicts_only(way: str, accelerator: Accelerator) -> None:
    program = RunnablePassthrough.assign(a=RunnableLambda(str) | len)
    expected = await outcome(program.invoke, "no dict")
    found = await outcome(_way(accelerator, way), plan_of(program), input="no dict")
    assert plain(found) == plain(expected)
    assert "must be a dict" in str(found[1])


async def test_cancelling_ends_the_leaves(accelerator: Accelerator) -> None:
    gate = asyncio.Event()
    waiting = QUESTION | AsyncChat(gate=gate) | StrOutputParser()
    runs = Runs()
    plan = plan_of(RunnableParallel(a=waiting, b=waiting))
    task = asyncio.create_task(accelerator.arun(plan, input=INPUT, config=config_with(runs)))
    await until(lambda: len(runs.open()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("way", WAYS)
async def test_a_deadline_ends_it(way: str) -> None:
    with Accelerator(strict=True, deadline_s=0.0) as accelerator:
        kind, error = await outcome(_way(accelerator, way), plan_of(model_chain()), input=INPUT)
    assert (kind, type(error)) == ("raised", DeadlineError)


def test_a_bound_on_branches_in_the_config_is_refused(accelerator: Accelerator) -> None:
    plan = plan_of(RunnableParallel(a=len, b=len))
    with pytest.raises(ConfigError, match="max_concurrency=1"):
        accelerator.run(plan, input=INPUT, config={"max_concurrency": 1})
    both = accelerator.run(plan, input=INPUT, config={"max_concurrency": 2})
    assert both == {"a": 1, "b": 1}


# Whatever is not declared ------------------------------------------------------------------------


def _as_they_come(chunks: Iterator[Any]) -> Iterator[Any]:
    yield from chunks


def _langgraph() -> Any:
    graph: Any = StateGraph(dict)
    graph.add_node("node", lambda state: state)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SyncChat().map(), "RunnableEach"),
        (lambda: RunnableGenerator(_as_they_come), "RunnableGenerator"),
        (_langgraph, "CompiledStateGraph"),
        (lambda: accelerate(model_chain()), "AcceleratedRunnable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_is_not_declared_is_named_with_its_place(
    make: Callable[[], Any], named: str
) -> None:
    inner = RunnablePassthrough.assign(answer=QUESTION | make() | RunnablePassthrough())
    with pytest.raises(TranslationError) as raised:
        plan_of(RunnablePassthrough() | inner)
    assert raised.value.where == "program.1.answer.1"
    assert named in str(raised.value.found)
    assert "RunnableParallel" in str(raised.value.valid)
    assert "accelerate" in str(raised.value.hint)


@pytest.mark.parametrize("program", [None, len, object(), "text"])
def test_what_is_no_program_is_refused(program: Any) -> None:
    with pytest.raises(TranslationError, match="langchain_core"):
        plan_of(program)


def test_explain_draws_the_stages(accelerator: Accelerator) -> None:
    found = itemgetter("input") | AsyncRetriever() | joined
    both = RunnableParallel(context=found, input=lambda given: given["input"])
    said = accelerator.explain(plan_of(both | QUESTION | SyncChat()))
    assert "ragraph(input, config)  optional=config" in said
    assert "context.retriever: Function(context.function, config)" in said
    assert "model: Function(prompt, config) -> model  after prompt  fn=@SyncChat" in said
