"""A plan of a compiled LangGraph gives the graph's output and tells what its nodes tell."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.channels import EphemeralValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.managed import RemainingSteps
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from lc_fakes import AsyncRetriever, StreamingChat, SyncChat
from lc_programs import QUESTION
from lc_recording import plain
from lc_runs import Runs, config_with, outcome, until
from pydantic import BaseModel
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate, explain
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator, ConfigError, GraphError, TranslationError, plan_of
from rag_accel.accelerator import current_request
from rag_accel.interception.patches import patches

WAYS = ("run", "arun")

#: what nodes and conditions did, in order
DONE: list[str] = []


class State(TypedDict, total=False):
    text: str
    count: int
    log: Annotated[list[str], operator.add]


def noting(name: str, **written: Any) -> Any:
    """Return a node that notes itself and writes."""

    def node(state: Any) -> dict[str, Any]:
        DONE.append(name)
        seen = f"{name} saw {len(state.get('log', []))}"
        return {"log": [seen], **{key: value(state) for key, value in written.items()}}

    return node


def answering(answer: Any) -> Any:
    """Return a condition with a name of its own."""
    return RunnableLambda(lambda state: answer, name=f"answers {answer}")


def counting(name: str) -> Any:
    return noting(name, count=lambda state: state.get("count", 0) + 1)


def graph_of(*edges: tuple[Any, Any], state: Any = State, **nodes: Any) -> Any:
    """Return a graph to be compiled; nodes that are not given note themselves."""
    graph: Any = StateGraph(state)
    sides = [[side] if isinstance(side, str) else side for edge in edges for side in edge]
    names = dict.fromkeys([*(name for side in sides for name in side), *nodes])
    for name in names:
        if name not in (START, END):
            graph.add_node(name, nodes.get(name, noting(name)))
    for source, target in edges:
        graph.add_edge(source, target)
    return graph


def sequence() -> Any:
    return graph_of((START, "a"), ("a", "b"), ("b", "c"), ("c", END))


def fan() -> Any:
    return graph_of((START, "a"), *(("a", name) for name in "dbc"), *((n, "e") for n in "bcd"))


def uneven() -> Any:
    return graph_of((START, "a"), (START, "b"), ("a", "e"), ("b", "c"), ("c", "e"), ("e", END))


def joined() -> Any:
    return graph_of((START, "a"), (START, "b"), ("b", "c"), (["a", "c"], "e"), ("e", END))


def routed() -> Any:
    graph = graph_of((START, "a"), b=noting("b"), c=noting("c"))

    def route(state: State) -> bool:
        DONE.append(f"route after {len(state.get('log', []))}")
        return len(state.get("text", "")) > 3

    graph.add_conditional_edges("a", route, {True: "b", False: "c"})
    return graph


def looped() -> Any:
    graph = graph_of((START, "a"), ("a", "b"), ("c", END), a=counting("a"))
    graph.add_conditional_edges("b", lambda s: "a" if s["count"] < 4 else "c", ["a", "c"])
    return graph


def looped_join() -> Any:
    graph = graph_of((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"), a=counting("a"))
    graph.add_conditional_edges("d", lambda s: "a" if s["count"] < 3 else END, ["a", END])
    return graph


def begun_by_condition() -> Any:
    graph = graph_of(a=noting("a"), b=noting("b"))
    graph.add_conditional_edges(START, lambda s: s["text"], {"question": "a", "other": "b"})
    return graph


def several_conditions() -> Any:
    graph = graph_of((START, "a"), ("a", "b"), c=noting("c"), d=noting("d"), e=noting("e"))
    graph.add_conditional_edges("a", answering("c"), ["c", "d"])
    graph.add_conditional_edges("a", answering("none"), {"e": "e", "none": END})
    graph.add_conditional_edges("b", answering("e"), ["d", "e"])
    return graph


class Model(BaseModel):
    text: str
    log: Annotated[list[str], operator.add] = []


def of_pydantic() -> Any:
    return graph_of(
        (START, "a"), ("a", "b"), state=Model, **{n: lambda s: {"log": [s.text]} for n in "ab"}
    )


@dataclass
class Data:
    text: str = ""
    log: Annotated[list[str], operator.add] = None  # type: ignore[assignment]


def of_dataclass() -> Any:
    return graph_of((START, "a"), state=Data, a=lambda s: {"log": [s.text, type(s).__name__]})


class Inner(TypedDict, total=False):
    text: str
    secret: str
    passing: Annotated[str, EphemeralValue]
    log: Annotated[list[str], operator.add]


class Asked(TypedDict):
    text: str


class Told(TypedDict, total=False):
    log: list[str]


def schemas() -> Any:
    graph: Any = StateGraph(Inner, input_schema=Asked, output_schema=Told)
    graph.add_node("a", lambda s: {"secret": s["text"] * 2, "passing": "b"})
    graph.add_node("b", lambda s: {"log": [s["secret"], s.get("passing", "no")]})
    graph.add_node("c", lambda s: {"log": [s.get("passing", "no")]})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    return graph


def messages() -> Any:
    return graph_of(
        (START, "ask"),
        ("ask", "again"),
        state=MessagesState,
        ask=lambda s: {"messages": [StreamingChat().invoke(s["messages"])]},
        again=lambda s, config: {"messages": SyncChat().invoke(s["messages"], config)},
    )


def chains() -> Any:
    chain = {"input": itemgetter("text")} | QUESTION | SyncChat()
    return graph_of(
        (START, "find"),
        ("find", "answer"),
        ("answer", END),
        find=itemgetter("text")
        | AsyncRetriever()
        | (lambda found: {"log": [one.page_content for one in found]}),
        answer=chain | StrOutputParser() | (lambda text: {"text": text}),
    )


class Left(TypedDict, total=False):
    left: RemainingSteps
    text: str
    log: Annotated[list[str], operator.add]


def injected() -> Any:
    def look(state: Left, config: RunnableConfig, runtime: Runtime) -> Any:
        metadata, configurable = config.get("metadata", {}), config.get("configurable", {})
        info = runtime.execution_info
        assert info is not None
        return {
            "log": [
                f"left {state.get('left')}",
                f"{metadata['langgraph_step']} {metadata['langgraph_node']}",
                f"{metadata['langgraph_triggers']} {metadata.get('user')}",
                f"{configurable.get('visible')} {info.node_attempt} {runtime.store}",
                f"{sorted(config.get('tags', []))}",
            ]
        }

    graph = graph_of((START, "a"), ("a", "b"), state=Left, a=look)
    graph.add_node("c", look, metadata={"mine": 1})
    return graph.add_edge("b", "c")


def updating_command() -> Any:
    return graph_of(
        (START, "a"), ("a", "b"), a=lambda s: Command(update={"log": ["by command"], "other": 1})
    )


def nothing_written() -> Any:
    return graph_of((START, "a"), ("a", "b"), a=lambda s: None, b=lambda s: {})


def odd_names() -> Any:
    return graph_of((START, "input"), ("input", "start"), ("start", "output"), ("output", "a#2"))


GRAPHS: dict[str, Callable[[], Any]] = {
    **{made.__name__: made for made in (sequence, fan, uneven, joined, routed, looped)},
    **{made.__name__: made for made in (looped_join, begun_by_condition, several_conditions)},
    **{made.__name__: made for made in (of_pydantic, of_dataclass, schemas, chains, injected)},
    **{made.__name__: made for made in (updating_command, nothing_written, odd_names)},
}
SIDE_BY_SIDE = {"fan", "uneven", "joined", "looped_join", "several_conditions"}
INPUT = {"text": "question", "log": ["given"]}


def _of(name: str) -> Any:
    return GRAPHS[name]().compile()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*GRAPHS, "messages"])
async def test_outputs_and_events_of_nodes_are_those_of_the_graph(
    name: str, way: str, accelerator: Accelerator
) -> None:
    make = messages if name == "messages" else GRAPHS[name]
    given: Any = {"messages": [HumanMessage("hello", id="h")]} if name == "messages" else INPUT
    program, of_program, of_plan = make().compile(), Runs(), Runs()
    DONE.clear()
    call = program.invoke if way == "run" else program.ainvoke
    expected = await outcome(call, given, config_with(of_program))
    done, plan = list(DONE), plan_of(make().compile())
    DONE.clear()
    with coverage() as meter:
        found = await outcome(
            getattr(accelerator, way), plan, input=given, config=config_with(of_plan)
        )
    assert expected[0] == "returned", expected
    assert plain(found) == plain(expected)
    assert meter.passed_by == 0, str(meter)
    assert of_plan.open() == []
    told, others = Counter(of_plan.log), Counter(of_program.log)
    assert told <= others, list((told - others).elements())
    assert sorted(event for event, *_ in (others - told).elements()) == [
        "on_chain_end",
        "on_chain_start",
    ]
    if name not in SIDE_BY_SIDE:
        assert of_plan.log == of_program.log[1:-1]
        assert done == DONE
    assert Counter(done) == Counter(DONE)


@pytest.mark.parametrize("way", WAYS)
async def test_nodes_and_conditions_may_be_coroutine_functions(
    way: str, accelerator: Accelerator
) -> None:
    async def node(state: State) -> Any:
        await asyncio.sleep(0)
        return {"log": [f"{threading.get_ident() == thread}"]}

    async def route(state: State) -> str:
        return "b"

    def make() -> Any:
        graph = graph_of((START, "a"), a=node, b=node)
        graph.add_conditional_edges("a", route, ["b", END])
        return graph.compile()

    thread = threading.get_ident()
    call = make().invoke if way == "run" else make().ainvoke
    expected = await outcome(call, INPUT)
    found = await outcome(getattr(accelerator, way), plan_of(make()), input=INPUT)
    assert plain(found) == plain(expected)
    assert found[0] == ("raised" if way == "run" else "returned")


def test_nodes_of_a_superstep_run_side_by_side(accelerator: Accelerator) -> None:
    barrier = threading.Barrier(3, timeout=10.0)
    nodes = {name: lambda state: {"log": [str(barrier.wait() >= 0)]} for name in "abc"}
    plan = plan_of(graph_of(*((START, name) for name in "abc"), **nodes).compile())
    assert accelerator.run(plan, input={"text": ""})["log"] == ["True"] * 3


def test_runs_share_nothing(accelerator: Accelerator) -> None:
    plan, program = plan_of(_of("looped")), _of("looped")
    for _ in range(3):
        assert accelerator.run(plan, input=INPUT) == program.invoke(INPUT)
    assert accelerator.run(plan, input={"count": 2}) == program.invoke({"count": 2})


def test_leaves_belong_to_one_request_of_the_plans_accelerator(accelerator: Accelerator) -> None:
    seen: list[Any] = []

    def node(state: State) -> Any:
        seen.append(current_request.get())
        return {}

    plan = plan_of(graph_of((START, "a"), ("a", "b"), a=node, b=node).compile())
    accelerator.run(plan, input=INPUT)
    assert len({id(identity) for identity in seen}) == 1
    assert seen[0].accelerator is accelerator
    assert current_request.get() is None


def test_leaf_calls_are_intercepted_while_the_plan_lives() -> None:
    plan = plan_of(_of("chains"))
    assert patches.patched()
    del plan
    gc.collect()
    assert not patches.patched()


def test_nodes_are_stages_and_conditions_conditions(accelerator: Accelerator) -> None:
    said = accelerator.explain(plan_of(_of("routed")))
    for line in (
        "start: Function(input, config) -> start  after START  fn=@LangGraph",
        "a: Function(start) -> a  after start  fn=@a",
        'a?: Branch(*)  after a  condition=@route targets=["b", "c"]',
        "END: after output",
    ):
        assert line in said, said
    joins = accelerator.explain(plan_of(_of("joined")))
    assert "superstep: Function(start) -> superstep  after a, b" in joins, joins


def test_an_explanation_ends_with_the_stages(accelerator: Accelerator) -> None:
    fast = accelerate(_of("routed"), accelerator=accelerator)
    _, _, stages = explain(fast).partition("  plan: plan_of(program) is a graph of these stages\n")
    drawn = accelerator.explain(plan_of(_of("routed"))).splitlines()
    assert stages.splitlines() == [f"  {line}" for line in drawn[2:-2]]
    asking = accelerate(sequence().compile(interrupt_after=["b"]), accelerator=accelerator)
    assert explain(asking).endswith("\n  plan: none (at program: interrupt_after)")
    chain = accelerate(RunnableLambda(len) | RunnableLambda(str), accelerator=accelerator)
    assert "\n    function-2: Function(function, config)" in explain(chain)


def test_a_graph_that_cannot_be_read_is_explained_without_a_plan(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = _of("fan")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("no subgraphs")

    fast = accelerate(compiled, accelerator=accelerator)
    monkeypatch.setattr(type(compiled), "get_subgraphs", fail)
    assert explain(fast).endswith("\n  plan: none (ValueError('no subgraphs'))")


# Errors ------------------------------------------------------------------------------------------


def failing_node() -> Any:
    def fail(state: State) -> Any:
        DONE.append("b")
        raise ValueError("broken")

    return graph_of((START, "a"), ("a", "b"), ("b", "c"), b=fail)


def failing_retriever() -> Any:
    failing = AsyncRetriever(error=ConnectionError("no index"))
    return graph_of((START, "a"), ("a", "b"), a=lambda s: {"text": failing.invoke("x")})


def failing_condition() -> Any:
    graph = graph_of((START, "a"), b=noting("b"))
    graph.add_conditional_edges("a", lambda s: 1 / 0, ["b", END])
    return graph


def unknown_answer() -> Any:
    graph = graph_of((START, "a"), b=noting("b"))
    graph.add_conditional_edges("a", lambda s: "nowhere", ["b", END])
    return graph


def clashing() -> Any:
    nodes = {name: noting(name, text=lambda s: "x") for name in "ab"}
    return graph_of((START, "a"), (START, "b"), **nodes)


def no_update() -> Any:
    return graph_of((START, "a"), a=lambda s: "text")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [failing_node, failing_retriever, failing_condition, unknown_answer, clashing, no_update],
)
async def test_errors_are_those_of_the_graph(
    make: Callable[[], Any], way: str, accelerator: Accelerator
) -> None:
    program, of_program, of_plan = make().compile(), Runs(), Runs()
    DONE.clear()
    call = program.invoke if way == "run" else program.ainvoke
    kind, expected = await outcome(call, INPUT, config_with(of_program))
    done = list(DONE)
    DONE.clear()
    plan = plan_of(make().compile())
    found = await outcome(getattr(accelerator, way), plan, input=INPUT, config=config_with(of_plan))
    assert (kind, found[0]) == ("raised", "raised")
    assert type(found[1]) is type(expected)
    assert str(found[1]) == str(expected)
    assert Counter(done) == Counter(DONE)
    await until(lambda: of_plan.open() == [])
    assert Counter(of_plan.log) <= Counter(of_program.log)


@pytest.mark.parametrize("limit", [1, 4, 9, 10, 11])
async def test_the_recursion_limit_counts_supersteps(limit: int, accelerator: Accelerator) -> None:
    given = {"input": {"count": 0}, "config": {"recursion_limit": limit}}
    plan, program = plan_of(_of("looped")), _of("looped")
    kind, expected = await outcome(program.invoke, *given.values())
    found = await outcome(accelerator.run, plan, **given)
    assert (found[0], type(found[1])) == (kind, type(expected))
    assert str(found[1]) == str(expected)
    assert (type(expected) is GraphRecursionError) == (limit < 10)


@pytest.mark.parametrize("given", [None, {}, {"unknown": 1}, "text", 5])
async def test_odd_inputs_come_to_the_same(given: Any, accelerator: Accelerator) -> None:
    expected = await outcome(_of("sequence").invoke, given)
    found = await outcome(accelerator.run, plan_of(_of("sequence")), input=given)
    assert (found[0], type(found[1])) == (expected[0], type(expected[1]))
    assert plain(found) == plain(expected)


def test_what_a_graph_has_no_place_for_is_refused_in_a_request(accelerator: Accelerator) -> None:
    with pytest.raises(ConfigError, match="a Command"):
        accelerator.run(plan_of(_of("sequence")), input=Command(resume=1))
    with pytest.raises(ConfigError, match="max_concurrency=1"):
        accelerator.run(plan_of(_of("fan")), input=INPUT, config={"max_concurrency": 1})
    with Accelerator(max_loops=2) as few, pytest.raises(GraphError, match="max_loops"):
        few.run(plan_of(_of("looped")), input=INPUT)


async def test_cancelling_ends_the_nodes(accelerator: Accelerator) -> None:
    begun = asyncio.Event()

    async def wait(state: State) -> Any:
        begun.set()
        await asyncio.Event().wait()

    plan = plan_of(graph_of((START, "a"), a=wait).compile())
    running = asyncio.create_task(accelerator.arun(plan, input=INPUT))
    await asyncio.wait_for(begun.wait(), 10.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# Whatever is not declared ------------------------------------------------------------------------


@task
def told(text: str) -> str:
    return text


def sending() -> Any:
    graph = graph_of((START, "a"), b=noting("b"))
    graph.add_conditional_edges("a", lambda s: [Send("b", s), Send("b", s)], ["b"])
    return graph


def naming_two() -> Any:
    graph = graph_of((START, "a"), b=noting("b"), c=noting("c"))
    graph.add_conditional_edges("a", lambda s: ["b", "c"], ["b", "c"])
    return graph


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (sending, "inputs of their own"),
        (naming_two, "b, c"),
        (lambda: graph_of((START, "a"), b=noting("b"), a=lambda s: Command(goto="b")), "b"),
        (lambda: graph_of((START, "a"), a=lambda s: interrupt("why")), "GraphInterrupt"),
        (lambda: graph_of((START, "a"), a=lambda s: {"text": told("x").result()}), "a task"),
    ],
    ids=["send", "two answers", "command", "interrupt", "task"],
)
async def test_what_a_node_does_beside_its_edges_is_named(
    make: Callable[[], Any], found: str, way: str, accelerator: Accelerator
) -> None:
    plan = plan_of(make().compile())
    kind, error = await outcome(getattr(accelerator, way), plan, input=INPUT)
    assert (kind, type(error)) == ("raised", TranslationError), error
    assert error.where == "program.a"
    assert found in str(error.found)
    assert error.valid
    assert "call the program itself" in str(error.hint)


def commanded() -> Any:
    graph = graph_of((START, "b"))
    return graph.add_node("a", lambda s: Command(goto="b"), destinations=("b",))


def unmapped() -> Any:
    graph = graph_of((START, "a"), b=noting("b"))
    return graph.add_conditional_edges("a", answering("b"), None)


@tool
def doubled(text: str) -> str:
    """Return a text twice."""
    return text * 2


def many() -> Any:
    names = [f"n{number}" for number in range(9)]
    graph = graph_of((START, "a"), **{name: noting(name) for name in names})
    for name in names:
        route = RunnableLambda(lambda s: "end", name=f"to {name}")
        graph.add_conditional_edges("a", route, {"go": name, "end": END})
    return graph


@entrypoint()
def functional(text: str) -> str:
    return text


def _with(**options: Any) -> Any:
    return graph_of((START, "b")).add_node("a", noting("a"), **options).compile()


@pytest.mark.parametrize(
    ("make", "where", "found"),
    [
        (lambda: sequence().compile(checkpointer=InMemorySaver()), "program", "a checkpointer"),
        (lambda: sequence().compile(store=InMemoryStore()), "program", "a store"),
        (lambda: sequence().compile(interrupt_before=["b"]), "program", "interrupt_before"),
        (lambda: sequence().compile(interrupt_after=["b"]), "program", "interrupt_after"),
        (lambda: _with(defer=True), "program.a", "defer=True"),
        (lambda: _with(retry_policy=RetryPolicy()), "program.a", "a retry policy"),
        (lambda: _with(cache_policy=CachePolicy()), "program.a", "a cache policy"),
        (lambda: commanded().compile(), "program.a", "a Command to b"),
        (lambda: graph_of((START, "a"), a=_of("fan")).compile(), "program.a", "a subgraph"),
        (
            lambda: graph_of((START, "a"), state=MessagesState, a=ToolNode([doubled])).compile(),
            "program.a",
            "tool calls",
        ),
        (lambda: unmapped().compile(), "program.a.answers b", "a condition"),
        (lambda: many().compile(), "program", "more than 64 sets"),
        (lambda: functional, "program", "Pregel"),
        (lambda: accelerate(_of("fan")), "program", "CompiledStateGraph"),
    ],
)
def test_a_part_that_no_graph_has_is_named_with_its_place(
    make: Callable[[], Any], where: str, found: str
) -> None:
    with pytest.raises(TranslationError, match="no graph of it can have") as raised:
        plan_of(make())
    assert raised.value.where == where
    assert found in str(raised.value.found)
    assert raised.value.valid
    assert "accelerate" in str(raised.value.hint)
