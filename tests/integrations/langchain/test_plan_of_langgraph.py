"""A plan of a compiled LangGraph gives the graph's output and tells what its nodes tell."""

from __future__ import annotations

import asyncio
import operator
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import EphemeralValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError
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
from lc_runs import calls_of, outcome, recorded, until
from pydantic import BaseModel
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate, explain
from langchain_rag_accel.coverage import coverage
from langchain_rag_accel.plan import TESTED_LANGGRAPH
from rag_accel import Accelerator, ConfigError, GraphError, TranslationError, plan_of
from rag_accel.accelerator import current_request

WAYS = ("run", "arun")

#: what nodes and conditions did, in order
DONE: list[str] = []


ENDS = {"START": START, "END": END}


class State(TypedDict, total=False):
    text: str
    count: int
    secret: str
    passing: Annotated[str, EphemeralValue]
    left: RemainingSteps
    log: Annotated[list[str], operator.add]


def noting(name: str, **written: Any) -> Any:
    """Return a node, or a condition, that notes itself and writes."""

    def node(state: Any) -> dict[str, Any]:
        DONE.append(name)
        seen = f"{name} saw {len(state.get('log', []))}"
        return {"log": [seen], **{key: value(state) for key, value in written.items()}}

    return node


def answering(answer: Any) -> Any:
    """Return a condition with a name of its own."""
    return RunnableLambda(lambda state: DONE.append(answer) or answer, name=f"answers {answer}")


def graph_of(edges: str, *conditions: Any, state: Any = State, **nodes: Any) -> Any:
    """Return a graph to be compiled; nodes that are not given note themselves."""
    graph: Any = StateGraph(state)
    pairs = [edge.split(">") for edge in edges.split()]
    named = [name for pair in pairs for side in pair for name in side.split(",")]
    for name in dict.fromkeys([*named, *nodes]):
        if name not in ENDS:
            graph.add_node(name, nodes.get(name, noting(name)))
    for source, *targets in pairs:
        starts = [ENDS.get(name, name) for name in source.split(",")]
        for target in targets:
            graph.add_edge(starts if starts[1:] else starts[0], ENDS.get(target, target))
    for node, route, ends in conditions:
        graph.add_conditional_edges(ENDS.get(node, node), route, ends)
    return graph


COUNTING = noting("a", count=lambda state: state.get("count", 0) + 1)


def looped() -> Any:
    again = ("b", lambda s: "a" if s["count"] < 4 else "c", ["a", "c"])
    return graph_of("START>a a>b c>END", again, a=COUNTING)


def looped_join() -> Any:
    again = ("d", lambda s: "a" if s["count"] < 3 else END, ["a", END])
    return graph_of("START>a a>b a>c b,c>d", again, a=COUNTING)


def routed() -> Any:
    def route(state: State) -> bool:
        DONE.append(f"route after {len(state.get('log', []))}")
        return len(state.get("text", "")) > 3

    return graph_of("START>a b c", ("a", route, {True: "b", False: "c"}))


def several_conditions() -> Any:
    of_a = [("a", answering("c"), ["c", "d"]), ("a", answering("none"), {"e": "e", "none": END})]
    return graph_of("START>a a>b c d e", *of_a, ("b", answering("e"), ["d", "e"]))


class Model(BaseModel):
    text: str
    log: Annotated[list[str], operator.add] = []


@dataclass
class Data:
    text: str = ""
    log: Annotated[list[str], operator.add] = None  # type: ignore[assignment]


class Asked(TypedDict):
    text: str


class Told(TypedDict, total=False):
    log: list[str]


def schemas() -> Any:
    graph: Any = StateGraph(State, input_schema=Asked, output_schema=Told)
    graph.add_node("a", lambda s: {"secret": s["text"] * 2, "passing": "b"})
    graph.add_node("b", lambda s: {"log": [s["secret"], s.get("passing", "no")]})
    graph.add_node("c", lambda s: {"log": [s.get("passing", "no")]})
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")


def messages() -> Any:
    return graph_of(
        "START>ask ask>again",
        state=MessagesState,
        ask=lambda s: {"messages": [StreamingChat().invoke(s["messages"])]},
        again=lambda s, config: {"messages": SyncChat().invoke(s["messages"], config)},
    )


def chains() -> Any:
    chain = {"input": itemgetter("text")} | QUESTION | SyncChat()
    pages = RunnableLambda(lambda found: {"log": [one.page_content for one in found]})
    return graph_of(
        "START>find find>answer answer>END",
        find=itemgetter("text") | AsyncRetriever() | pages,
        answer=chain | StrOutputParser() | (lambda text: {"text": text}),
    )


def injected() -> Any:
    def look(state: State, config: RunnableConfig, runtime: Runtime) -> Any:
        metadata, configurable = config.get("metadata", {}), config.get("configurable", {})
        info: Any = runtime.execution_info
        own = [metadata[f"langgraph_{key}"] for key in ("step", "node", "triggers")]
        theirs = [metadata.get("user"), configurable.get("visible"), sorted(config.get("tags", []))]
        run = [state.get("left"), info.node_attempt, runtime.store]
        return {"log": [repr((own, theirs, run))]}

    graph = graph_of("START>a a>b", a=look)
    return graph.add_node("c", look, metadata={"mine": 1}).add_edge("b", "c")


def coroutines() -> Any:
    async def node(state: State) -> Any:
        return {"log": [f"in {threading.get_ident()}"]}

    async def route(state: State) -> str:
        return "b"

    return graph_of("START>a", ("a", route, ["b", END]), a=node, b=node)


def failing(state: State) -> Any:
    DONE.append("b")
    raise ValueError("broken")


def no_index(state: State) -> Any:
    return AsyncRetriever(error=ConnectionError("no index")).invoke("x")


CLASHING = {name: noting(name, text=lambda s: "x") for name in "ab"}

#: what is executed as a graph
GRAPHS: dict[str, Callable[[], Any]] = {
    "sequence": lambda: graph_of("START>a a>b b>c c>END"),
    "fan": lambda: graph_of("START>a a>d a>b a>c b>e c>e d>e"),
    "uneven": lambda: graph_of("START>a START>b a>e b>c c>e e>END"),
    "joined": lambda: graph_of("START>a START>b b>c a,c>e e>END"),
    "begun by condition": lambda: graph_of(
        "a b", ("START", lambda s: s["text"], {"question": "a", "other": "b"})
    ),
    "of pydantic": lambda: graph_of(
        "START>a a>b", state=Model, **{n: lambda s: {"log": [s.text]} for n in "ab"}
    ),
    "of dataclass": lambda: graph_of(
        "START>a", state=Data, a=lambda s: {"log": [s.text, type(s).__name__]}
    ),
    "command": lambda: graph_of(
        "START>a a>b", a=lambda s: Command(update={"log": ["by command"], "other": 1})
    ),
    "nothing written": lambda: graph_of("START>a a>b", a=lambda s: None, b=lambda s: {}),
    "odd names": lambda: graph_of("START>input input>start start>output output>a#2"),
    "failing node": lambda: graph_of("START>a a>b b>c", b=failing),
    "failing retriever": lambda: graph_of("START>a a>b", a=no_index),
    "failing condition": lambda: graph_of("START>a b", ("a", lambda s: 1 / 0, ["b", END])),
    "unknown answer": lambda: graph_of("START>a b", ("a", answering("nowhere"), ["b", END])),
    "clashing": lambda: graph_of("START>a START>b", **CLASHING),
    "no update": lambda: graph_of("START>a", a=lambda s: "text"),
    **{made.__name__: made for made in (routed, looped, looped_join, several_conditions)},
    **{made.__name__: made for made in (schemas, chains, injected, messages, coroutines)},
}
SIDE_BY_SIDE = {"fan", "uneven", "joined", "looped_join", "several_conditions", "clashing"}
INPUT = {"text": "question", "log": ["given"]}
HELLO = {"messages": [HumanMessage("hello", id="h")]}
#: of the graphs that fail
ERRORS: dict[str, type[Exception]] = {
    "failing node": ValueError,
    "failing retriever": ConnectionError,
    "failing condition": ZeroDivisionError,
    "unknown answer": KeyError,
    "clashing": InvalidUpdateError,
    "no update": InvalidUpdateError,
}
#: a graph, its input, the limit of recursions, and the error that it comes to
CASES: list[tuple[str, Any, int, type[Exception] | None]] = [
    *((name, HELLO if name == "messages" else INPUT, 25, ERRORS.get(name)) for name in GRAPHS),
    *(("looped", {"count": 0}, limit, GraphRecursionError) for limit in (1, 4, 9)),
    *(("looped", {"count": 0}, limit, None) for limit in (10, 11)),
    ("sequence", {"unknown": 1}, 25, None),
    ("sequence", {}, 25, None),
    ("sequence", None, 25, EmptyInputError),
    ("sequence", "text", 25, InvalidUpdateError),
    ("sequence", INPUT, 0, ValueError),
]


def _of(name: str) -> Any:
    return GRAPHS[name]().compile()


@pytest.mark.cross_product(keep=35)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "given", "limit", "error"), CASES)
async def test_outcomes_and_events_of_nodes_are_those_of_the_graph(
    name: str, given: Any, limit: int, error: Any, way: str, accelerator: Accelerator
) -> None:
    DONE.clear()
    program, plan, options = _of(name), plan_of(_of(name)), {"recursion_limit": limit}
    of_program, expected = await recorded(program.invoke, program.ainvoke, way, given, **options)
    done = list(DONE)
    DONE.clear()
    with coverage() as meter:
        of_plan, found = await recorded(*calls_of(plan, accelerator), way, given, **options)
    assert plain(found) == plain(expected)
    assert meter.passed_by == 0, str(meter)
    await until(lambda: of_plan.open() == [])
    told, others = Counter(of_plan.log), Counter(of_program.log)
    assert told <= others, list((told - others).elements())
    assert Counter(done) == Counter(DONE)
    if error is not None or (name, way) == ("coroutines", "run"):
        assert type(expected[1]) is (error or TypeError)
        return
    assert expected[0] == "returned", expected
    around = [event for event, *_ in (others - told).elements()]
    assert sorted(around) == ["on_chain_end", "on_chain_start"]
    if name not in SIDE_BY_SIDE:
        assert of_plan.log == of_program.log[1:-1]
        assert done == DONE


def test_nodes_run_side_by_side_in_one_request(accelerator: Accelerator) -> None:
    barrier, seen = threading.Barrier(3, timeout=10.0), list[Any]()

    def node(state: State) -> Any:
        seen.append(current_request.get())
        return {"log": [str(barrier.wait() >= 0)]}

    plan = plan_of(graph_of("START>a START>b START>c", a=node, b=node, c=node).compile())
    for text in ("once", "again"):  # runs share nothing
        assert accelerator.run(plan, input={"text": text})["log"] == ["True"] * 3
    assert [len({id(one) for one in part}) for part in (seen[:3], seen[3:], seen)] == [1, 1, 2]
    assert seen[0].accelerator is accelerator
    assert current_request.get() is None


def test_an_explanation_ends_with_the_stages(accelerator: Accelerator) -> None:
    fast = accelerate(_of("routed"), accelerator=accelerator)
    _, _, stages = explain(fast).partition("  plan: plan_of(program) is a graph of these stages\n")
    drawn = accelerator.explain(plan_of(_of("routed"))).splitlines()
    assert stages.splitlines() == [f"  {line}" for line in drawn[2:-2]]
    asking = accelerate(_compiled(interrupt_after=["b"]), accelerator=accelerator)
    assert explain(asking).endswith("\n  plan: none (at program: interrupt_after)")
    chain = accelerate(RunnableLambda(len) | RunnableLambda(str), accelerator=accelerator)
    assert "\n    function-2: Function(function, config)" in explain(chain)


def changed(checkpoint: Any, channels: Any, tasks: Any, versions: Any) -> Any:
    raise AssertionError("is not called")


@pytest.mark.parametrize("replacement", [None, changed])
def test_another_langgraph_is_named(
    replacement: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, inner = accelerate(_of("fan"), accelerator=accelerator), "langgraph.pregel._algo"
    monkeypatch.delattr(f"{inner}.apply_writes")
    if replacement is not None:
        monkeypatch.setattr(f"{inner}.apply_writes", replacement, raising=False)
    for name in ("run", "plan"):
        monkeypatch.delitem(sys.modules, f"rag_accel_adapters.langchain.langgraph_{name}")
    with pytest.raises(TranslationError, match="inner functions are not known") as raised:
        plan_of(_of("fan"))
    assert f"langgraph {version('langgraph')}," in str(raised.value.found)
    assert TESTED_LANGGRAPH in str(raised.value.valid)
    assert "call the program itself" in str(raised.value.hint)
    said = explain(fast).splitlines()[-1]
    assert said == f"  plan: none (at program: {raised.value.found})"
    assert fast.invoke(INPUT) == _of("fan").invoke(INPUT)
    monkeypatch.undo()
    monkeypatch.setattr("rag_accel_adapters.langchain.langgraph_plan.declared", lambda graph: 1 / 0)
    assert explain(fast).endswith("\n  plan: none (ZeroDivisionError('division by zero'))")


def test_what_a_graph_has_no_place_for_is_refused_in_a_request(accelerator: Accelerator) -> None:
    with pytest.raises(TranslationError, match="a Command"):
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

    plan = plan_of(graph_of("START>a", a=wait).compile())
    running = asyncio.create_task(accelerator.arun(plan, input=INPUT))
    await asyncio.wait_for(begun.wait(), 10.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# Whatever is not declared ------------------------------------------------------------------------


@task
def told(text: str) -> str:
    return text


@tool
def doubled(text: str) -> str:
    """Return a text twice."""
    return text * 2


@entrypoint()
def functional(text: str) -> str:
    return text


def answers(answer: Any) -> Any:
    return graph_of("START>a b c", ("a", lambda s: answer, ["b", "c"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: answers([Send("b", {}), Send("b", {})]), "inputs of their own"),
        (lambda: answers(["b", "c"]), "b, c"),
        (lambda: graph_of("START>a b", a=lambda s: Command(goto="b")), "b"),
        (lambda: graph_of("START>a", a=lambda s: interrupt("why")), "GraphInterrupt"),
        (lambda: graph_of("START>a", a=lambda s: {"text": told("x").result()}), "a task"),
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


def _routing(*conditions: Any) -> Any:
    pairs = zip(conditions[::2], conditions[1::2], strict=True)
    names = " ".join(f"n{at}" for at in range(9))
    return graph_of(f"START>a b {names}", *(("a", *pair) for pair in pairs)).compile()


def many() -> list[Any]:
    named = [RunnableLambda(lambda s: "end", name=f"to {at}") for at in range(9)]
    return [one for at in range(9) for one in (named[at], {"go": f"n{at}", "end": END})]


def _with(node: Any = None, state: Any = State, **options: Any) -> Any:
    return graph_of("START>b", state=state).add_node("a", node or noting("a"), **options).compile()


def _compiled(**options: Any) -> Any:
    return GRAPHS["sequence"]().compile(**options)


def _set(name: str) -> Any:
    compiled = _compiled()
    setattr(compiled, name, 1)
    return compiled


@pytest.mark.parametrize(
    ("make", "where", "found"),
    [
        (lambda: _compiled(checkpointer=InMemorySaver()), "program", "checkpointer"),
        (lambda: _compiled(store=InMemoryStore()), "program", "store"),
        (lambda: _compiled(cache=InMemoryCache()), "program", "cache"),
        (lambda: _compiled(interrupt_before=["b"]), "program", "interrupt_before"),
        (lambda: _compiled(interrupt_after=["b"]), "program", "interrupt_after"),
        (lambda: _compiled(debug=True), "program", "debug"),
        *(
            (partial(_set, name), "program", name)
            for name in ("context_schema", "step_timeout", "retry_policy", "cache_policy")
        ),
        (lambda: _with(defer=True), "program.a", "defer"),
        (lambda: _with(retry_policy=RetryPolicy()), "program.a", "retry_policy"),
        (lambda: _with(cache_policy=CachePolicy()), "program.a", "cache_policy"),
        (lambda: _with(destinations=("b",)), "program.a", "a Command to b"),
        (lambda: _with(_of("fan")), "program.a", "a subgraph"),
        (lambda: _with(ToolNode([doubled]), MessagesState), "program.a", "tool calls"),
        (lambda: _routing(answering("b"), None), "program.a.answers b", "a condition"),
        (lambda: _routing(*many()), "program", "more than 64 sets"),
        (lambda: functional, "program", "Pregel"),
        (lambda: accelerate(_of("fan")), "program", "CompiledStateGraph"),
    ],
)
def test_a_part_that_no_plan_has_is_named_with_its_place(
    make: Callable[[], Any], where: str, found: str
) -> None:
    with pytest.raises(TranslationError, match="a plan cannot do all") as raised:
        plan_of(make())
    assert raised.value.where == where
    assert found in str(raised.value.found)
    assert raised.value.valid
    assert "accelerate" in str(raised.value.hint)
