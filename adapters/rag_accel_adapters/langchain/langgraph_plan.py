"""A compiled LangGraph as a RAGraph: its nodes are stages, its conditions say what follows.

Which nodes can run in one superstep follows from the edges, so each such set of nodes has stages of
its own. What a graph without runs, checkpoints and tasks of its own has no place for is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)
from langgraph.graph.state import CompiledStateGraph

from rag_accel.graph.framework_calls import FrameworkCall, PlanBuilder
from rag_accel.graph.ragraph import RAGraph
from rag_accel_adapters.langchain.langgraph_edges import (
    START,
    Active,
    DeclaredGraph,
    Superstep,
    declared,
    refused,
    supersteps,
)
from rag_accel_adapters.langchain.langgraph_parts import is_tool_node
from rag_accel_adapters.langchain.langgraph_run import GraphRun
from rag_accel_adapters.langchain.plan import CONFIG, INPUT

_RUNNING = ("invoke", "ainvoke", "stream", "astream")
#: attributes of a compiled graph that a plan of it has no place for
_OF_GRAPH = (
    *("checkpointer", "store", "cache", "context_schema", "step_timeout", "debug"),
    *("interrupt_before_nodes", "interrupt_after_nodes", "retry_policy", "cache_policy"),
)
_OF_NODE = (
    *("defer", "retry_policy", "cache_policy", "timeout"),
    *("error_handler_node", "is_error_handler"),
)


def _next_nodes(name: str, run: str, stages: Mapping[Active, list[str]]) -> Callable[..., Any]:
    """Return a condition: the stages of the nodes that the run of this value has next."""

    def stages_of(values: Mapping[str, Any]) -> list[str]:
        return stages[values[run].active]

    stages_of.__name__ = name
    return stages_of


def graph_of(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a compiled graph as one of the inputs ``input`` and, where given, ``config``.

    Args:
        program: the compiled graph.
        name: names the program, for what the scheduler learns of it.
        holder: what must live as long as the graph.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    read = _checked(program)
    following = supersteps(read)
    builder = PlanBuilder(RAGraph([INPUT, CONFIG], optional=CONFIG))

    def start(given: Any, config: RunnableConfig | None = None) -> GraphRun:
        begun = GraphRun(program, following, given, config, get_callback_manager_for_config)
        begun.call(START)
        return begun

    async def astart(given: Any, config: RunnableConfig | None = None) -> GraphRun:
        begun = GraphRun(program, following, given, config, get_async_callback_manager_for_config)
        await begun.acall(START)
        return begun

    def add_node(node: str) -> str:
        call, acall = partial(GraphRun.call, node=node), partial(GraphRun.acall, node=node)
        one = FrameworkCall(node, call, acall, name, holder)
        return builder.add(node, one, run, after=None)

    call = FrameworkCall(program.get_name(), start, astart, name, holder)
    run = builder.add("start", call, INPUT, CONFIG)
    first, *others = following
    begins: dict[Superstep, list[str]] = {}
    ends = {first: run}
    for step in others:
        begins[step] = [add_node(node) for node in step[0]]
        if not step[0]:
            begins[step] = [builder.add("output", GraphRun.output, run, after=None)]
            builder.end(*begins[step])
        elif len(step[0]) == 1:
            (ends[step],) = begins[step]
        else:
            ends[step] = builder.add("superstep", GraphRun.advance, run, after=None)
            builder.graph.add_edge(begins[step], ends[step])
    for step, end in ends.items():
        stages = {after[0]: begins[after] for after in following[step]}
        if len(stages) == 1:
            builder.graph.add_edge(end, *stages.values())
            continue
        conditions = "+".join(key for node in step[0] for key in read.conditions.get(node, ()))
        targets = [stage for several in stages.values() for stage in several]
        builder.graph.add_edge(end, _next_nodes(conditions, run, stages), targets)
    return builder.graph


def _checked(graph: Any) -> DeclaredGraph:
    """Return what a graph declares.

    Raises:
        TranslationError: naming the first part that a plan of it has no place for.
    """
    if not isinstance(graph, CompiledStateGraph) or any(
        getattr(type(graph), name) is not getattr(CompiledStateGraph, name) for name in _RUNNING
    ):
        kind = f"{type(graph).__module__}.{type(graph).__qualname__}"
        raise refused("program", kind, "a compiled StateGraph, not accelerated")
    _check_attributes(graph, _OF_GRAPH, "program")
    read = declared(graph)
    for name, spec in graph.builder.nodes.items():
        place = f"program.{name}"
        _check_attributes(spec, _OF_NODE, place)
        if read.commanded[name]:
            raise refused(place, f"a Command to {', '.join(read.commanded[name])}")
        if graph.nodes[name].subgraphs:
            raise refused(place, "a subgraph")
        if is_tool_node(spec.runnable):
            raise refused(place, "tool calls")
    for node, conditions in read.conditions.items():
        for name, targets in conditions.items():
            if targets is None:
                raise refused(f"program.{node}.{name}", "a condition", "one with a path_map")
    return read


def _check_attributes(obj: Any, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if getattr(obj, name, None):
            raise refused(where, name.removesuffix("_nodes"), "graphs and nodes without it")
