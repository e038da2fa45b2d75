"""A compiled LangGraph as a RAGraph: its nodes are stages, its conditions say what follows.

Which nodes can run in one superstep follows from the edges, so each such set of nodes has stages of
its own. What a graph without runs, checkpoints and tasks of its own has no place for is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)
from langgraph.graph.state import CompiledStateGraph

from rag_accel.errors import TranslationError
from rag_accel.graph.framework_calls import FrameworkCall, PlanBuilder
from rag_accel.graph.ragraph import RAGraph
from rag_accel_adapters.langchain.langgraph_edges import END, START, DeclaredGraph, declared
from rag_accel_adapters.langchain.langgraph_parts import is_tool_node
from rag_accel_adapters.langchain.langgraph_run import Active, GraphRun, config_of
from rag_accel_adapters.langchain.plan import CONFIG, INPUT, check_concurrency

#: The most sets of nodes that may run in one superstep.
MAX_SUPERSTEPS = 64

_RUNNING = ("invoke", "ainvoke", "stream", "astream")
#: attributes of a compiled graph, and what each says that a graph of it cannot do
_OF_GRAPH = {
    "checkpointer": "a checkpointer",
    "store": "a store",
    "cache": "a cache",
    "context_schema": "a context",
    "interrupt_before_nodes": "interrupt_before",
    "interrupt_after_nodes": "interrupt_after",
    "step_timeout": "a step_timeout",
    "debug": "debug=True",
    "retry_policy": "a retry policy",
    "cache_policy": "a cache policy",
}
_OF_NODE = {
    "defer": "defer=True",
    "retry_policy": "a retry policy",
    "cache_policy": "a cache policy",
    "timeout": "a timeout",
    "error_handler_node": "an error handler",
    "is_error_handler": "an error handler",
}


class GraphStartCall(FrameworkCall):
    """The start of a run, with the conditions that the graph begins with.

    Args:
        graph: the compiled graph.
        width: the most nodes that it runs side by side.
        expected: the nodes that may be next.
        program: names the program.
        holder: what must live as long as this.
    """

    def __init__(
        self, graph: Any, width: int, expected: tuple[Active, ...], program: str, holder: object
    ) -> None:
        super().__init__(program)
        self.__name__ = graph.get_name()
        self._graph, self._width = graph, width
        self._expected, self._holder = expected, holder

    def __call__(self, given: Any, config: RunnableConfig | None = None) -> GraphRun:
        config = self._config(config)
        run = GraphRun(self._graph, given, config, get_callback_manager_for_config(config))
        run.call(START)
        run.advance(self._expected)
        return run

    async def acall(self, given: Any, config: RunnableConfig | None = None) -> GraphRun:
        """Start on this loop."""
        config = self._config(config)
        run = GraphRun(self._graph, given, config, get_async_callback_manager_for_config(config))
        await run.acall(START)
        run.advance(self._expected)
        return run

    def _config(self, config: RunnableConfig | None) -> RunnableConfig:
        config = config_of(self._graph, config)
        check_concurrency(config, self._width)
        return config


class NodeCall(FrameworkCall):
    """A call of one node.

    Args:
        node: its name.
        expected: the nodes that may be next, if it is alone in its superstep.
        program: names the program.
    """

    def __init__(self, node: str, expected: tuple[Active, ...] | None, program: str) -> None:
        super().__init__(program)
        self.__name__ = node
        self._node, self._expected = node, expected

    def __call__(self, run: GraphRun) -> None:
        run.call(self._node)
        self._end(run)

    async def acall(self, run: GraphRun) -> None:
        """Call the node on this loop."""
        await run.acall(self._node)
        self._end(run)

    def _end(self, run: GraphRun) -> None:
        if self._expected is not None:
            run.advance(self._expected)


class SuperstepEnd:
    """The end of a superstep of several nodes: their writes are applied together.

    Args:
        expected: the nodes that may be next.
    """

    def __init__(self, expected: tuple[Active, ...]) -> None:
        self.__name__, self._expected = "superstep", expected

    def __call__(self, run: GraphRun) -> None:
        run.advance(self._expected)


class NextNodes:
    """A condition: the stages of the nodes that are next.

    Args:
        conditions: names the conditions of the program that decided.
        run: the value that is the run.
        stages: by the nodes that are next.
    """

    def __init__(self, conditions: str, run: str, stages: Mapping[Active, list[str]]) -> None:
        self.__name__, self._run, self._stages = conditions, run, stages

    def __call__(self, values: Mapping[str, Any]) -> list[str]:
        return self._stages[values[self._run].active]


def output(run: GraphRun) -> Any:
    """Return what a run has put out."""
    return run.latest


@dataclass(frozen=True, slots=True)
class Superstep:
    """Nodes that can run together, and what joins have heard before.

    Args:
        active: the nodes.
        heard: by its place, a join and a node that it need not wait for any more.
    """

    active: Active
    heard: frozenset[tuple[int, str]] = frozenset()


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
    following = _supersteps(read)
    width = max(len(step.active) for step in following)
    builder = PlanBuilder(RAGraph([INPUT, CONFIG], optional=CONFIG))
    first, *others = following
    expected = {step: tuple(after.active for after in afters) for step, afters in following.items()}
    start = GraphStartCall(program, width, expected[first], name, holder)
    run = builder.add("start", start, INPUT, CONFIG)
    begins: dict[Superstep, list[str]] = {}
    ends = {first: run}
    for step in others:
        nodes = step.active
        if not nodes:
            begins[step] = [builder.add_unlinked("output", output, run)]
            builder.end(begins[step][0])
        elif len(nodes) == 1:
            call = NodeCall(nodes[0], expected[step], name)
            begins[step] = [builder.add_unlinked(nodes[0], call, run)]
            ends[step] = begins[step][0]
        else:
            calls = [NodeCall(node, None, name) for node in nodes]
            begins[step] = [builder.add_unlinked(call.__name__, call, run) for call in calls]
            ends[step] = builder.add_unlinked("superstep", SuperstepEnd(expected[step]), run)
            builder.graph.add_edge(begins[step], ends[step])
    for step, end in ends.items():
        stages = {after.active: begins[after] for after in following[step]}
        if len(stages) == 1:
            builder.graph.add_edge(end, *stages.values())
            continue
        conditions = [one.name for node in step.active for one in read.edges[node].conditions]
        targets = [stage for several in stages.values() for stage in several]
        builder.graph.add_edge(end, NextNodes("+".join(conditions), run, stages), targets)
    return builder.graph


def _supersteps(read: DeclaredGraph) -> dict[Superstep, tuple[Superstep, ...]]:
    """Return every superstep that can come about, the start first, and those that may follow it."""
    found: dict[Superstep, tuple[Superstep, ...]] = {}
    waiting = [Superstep((START,))]
    for step in waiting:
        found[step] = tuple(dict.fromkeys(_after(read, step))) if step.active else ()
        waiting += [after for after in found[step] if after not in waiting]
        if len(waiting) > MAX_SUPERSTEPS:
            raise _too_many()
    return found


def _after(read: DeclaredGraph, step: Superstep) -> Iterator[Superstep]:
    heard = set(step.heard)
    always = {target for node in step.active for target in read.edges[node].targets}
    for place, (starts, end) in enumerate(read.joins):
        heard.update((place, node) for node in step.active if node in starts)
        if all((place, node) in heard for node in starts):
            always.add(end)
            heard.difference_update((place, node) for node in starts)
    chosen = {frozenset(always - {END}): None}
    for condition in (one for node in step.active for one in read.edges[node].conditions):
        targets = condition.targets or ()
        chosen = {nodes | ({target} - {END}): None for nodes in chosen for target in targets}
        if len(chosen) > MAX_SUPERSTEPS:
            raise _too_many()
    for nodes in chosen:
        active = tuple(sorted(nodes))
        # Where no node is next the run ends, whatever a join still waits for.
        yield Superstep(active, frozenset(heard) if active else frozenset())


def _too_many() -> TranslationError:
    found = f"more than {MAX_SUPERSTEPS} sets of nodes that may run together"
    return _refused("program", found, f"up to {MAX_SUPERSTEPS} of them")


def _checked(graph: Any) -> DeclaredGraph:
    """Return what a graph declares.

    Raises:
        TranslationError: naming the first part that a graph of it has no place for.
    """
    plain = isinstance(graph, CompiledStateGraph) and all(
        getattr(type(graph), name) is getattr(CompiledStateGraph, name) for name in _RUNNING
    )
    if not plain:
        kind = f"{type(graph).__module__}.{type(graph).__qualname__}"
        raise _refused("program", kind, "a compiled StateGraph, not accelerated")
    for attribute, found in _OF_GRAPH.items():
        if getattr(graph, attribute, None):
            raise _refused("program", found)
    read = declared(graph)
    for name, spec in graph.builder.nodes.items():
        place = f"program.{name}"
        for attribute, found in _OF_NODE.items():
            if getattr(spec, attribute, None):
                raise _refused(place, found)
        if read.edges[name].commanded:
            raise _refused(place, f"a Command to {', '.join(read.edges[name].commanded)}")
        if graph.nodes[name].subgraphs:
            raise _refused(place, "a subgraph")
        if is_tool_node(spec.runnable):
            raise _refused(place, "tool calls")
    for name, edges in read.edges.items():
        for condition in edges.conditions:
            if condition.targets is None:
                where = f"program.{name}.{condition.name}"
                raise _refused(where, "a condition", "a condition with a path_map")
    return read


def _refused(
    where: str, found: str, valid: str = "nodes, edges and conditions with a path_map"
) -> TranslationError:
    return TranslationError(
        "a LangGraph has a part that no graph of it can have",
        where=where,
        found=found,
        valid=valid,
        hint="call the program itself; accelerate(...) runs it",
    )
