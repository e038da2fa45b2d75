"""A compiled LangGraph as a RAGraph: its nodes are stages, its conditions say what follows.

Which nodes can run in one superstep follows from the edges, so each such set of nodes has stages of
its own. What a graph without runs, checkpoints and tasks of its own has no place for is refused.

What is done between nodes is LangGraph's own: channels and reducers, the order of writes, the
config and callbacks of each node, the functions of conditions, which it calls after the node that
they belong to. The graph itself has no run that callbacks hear of. LangGraph may change these
functions: importing this raises an ImportError where it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)
from langgraph._internal._config import DEFAULT_RECURSION_LIMIT, ensure_config
from langgraph._internal._constants import CONFIG_KEY_CALL, PULL
from langgraph._internal._constants import INPUT as GRAPH_INPUT
from langgraph.errors import (
    EmptyInputError,
    ErrorCode,
    GraphBubbleUp,
    GraphRecursionError,
    create_error_message,
)
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._algo import (
    PregelTaskWrites,
    WritesProtocol,
    apply_writes,
    increment,
    prepare_next_tasks,
)
from langgraph.pregel._checkpoint import channels_from_checkpoint, empty_checkpoint
from langgraph.pregel._io import map_input, map_output_values
from langgraph.pregel._retry import arun_with_retry, run_with_retry
from langgraph.types import Command, PregelExecutableTask

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
from rag_accel_adapters.langchain.plan import CONFIG, INPUT, check_concurrency, child_manager
from rag_accel_adapters.langchain.walk import is_tool_node

#: every superstep that can come about, and those that may follow it
Following = Mapping[Superstep, tuple[Superstep, ...]]

_PARAMETERS: dict[Callable[..., Any], str] = {
    ensure_config: "configs",
    create_error_message: "message error_code",
    PregelTaskWrites: "path name writes triggers",
    apply_writes: "checkpoint channels tasks get_next_version trigger_to_nodes",
    increment: "current channel",
    prepare_next_tasks: "checkpoint pending_writes processes channels managed config step stop "
    "for_execution store checkpointer manager trigger_to_nodes updated_channels",
    channels_from_checkpoint: "specs checkpoint",
    empty_checkpoint: "",
    map_input: "input_channels chunk",
    map_output_values: "output_channels pending_writes channels",
    run_with_retry: "task retry_policy configurable",
    arun_with_retry: "task retry_policy configurable",
}
for _function, _names in _PARAMETERS.items():
    _found, _known = signature(_function).parameters, _names.split()
    if _known != [key for key, one in _found.items() if key in _known or one.default is one.empty]:
        raise ImportError(f"the parameters of {_function.__name__} are {', '.join(_found)}")


class GraphRun:
    """The state of one run, and the nodes that are next.

    Args:
        graph: the compiled graph, without a checkpointer.
        following: its supersteps.
        given: the input.
        config: the caller's.
        manager_for: makes the callback manager that a config asks for.

    Raises:
        TranslationError: if the input is a ``Command``.
        ConfigError: if ``max_concurrency`` would not be kept.
        EmptyInputError: if there is no input, as LangGraph raises it.
    """

    def __init__(
        self,
        graph: Any,
        following: Following,
        given: Any,
        config: RunnableConfig | None,
        manager_for: Callable[[RunnableConfig], Any],
    ) -> None:
        if isinstance(given, Command):
            raise refused("input", "a Command", "the state to begin with")
        config = ensure_config(graph.config, config)
        check_concurrency(config, max(len(nodes) for nodes, _ in following))
        limit = config.get("recursion_limit", DEFAULT_RECURSION_LIMIT)
        if limit < 1:
            raise ValueError("recursion_limit must be at least 1")
        manager = manager_for(config)
        if "ls_integration" not in manager.metadata:
            manager.add_metadata({"ls_integration": "langgraph"})
        self._graph, self._config, self._following = graph, config, following
        self._callbacks: Any = SimpleNamespace(get_child=lambda tag: child_manager(manager, tag))
        self._checkpoint = empty_checkpoint()
        self._channels, self._managed = channels_from_checkpoint(graph.channels, self._checkpoint)
        self._superstep: Superstep = ((START,), frozenset())
        self._step, self._stop = -1, limit
        self._tasks: dict[str, PregelExecutableTask] = {}
        self._latest: Any = None
        writes = list(map_input(graph.input_channels, given))
        if not writes:
            raise EmptyInputError(f"Received no input for {graph.input_channels}")
        self._end_superstep([PregelTaskWrites((), GRAPH_INPUT, writes, [])])

    @property
    def active(self) -> Active:
        """Return the nodes that are next, in order; none at the end."""
        return tuple(sorted(self._tasks))

    def output(self) -> Any:
        """Return what the run has put out so far."""
        return self._latest

    def call(self, node: str) -> None:
        """Call a node in this thread as LangGraph does, and end its superstep if it is alone.

        Raises:
            TranslationError: if it interrupts the run, or calls a task.
        """
        try:
            run_with_retry(self._tasks[node], None, _without_tasks(node))
        except GraphBubbleUp as signal:
            raise refused(f"program.{node}", type(signal).__name__, "a result") from signal
        if len(self._tasks) == 1:
            self.advance()

    async def acall(self, node: str) -> None:
        """Call a node on this loop; otherwise as ``call``."""
        try:
            await arun_with_retry(self._tasks[node], None, configurable=_without_tasks(node))
        except GraphBubbleUp as signal:
            raise refused(f"program.{node}", type(signal).__name__, "a result") from signal
        if len(self._tasks) == 1:
            self.advance()

    def advance(self) -> None:
        """End a superstep: apply what its nodes wrote and find the nodes that are next.

        Raises:
            TranslationError: if they are none of the declared.
            GraphRecursionError: as LangGraph raises it.
        """
        self._end_superstep(self._tasks.values())
        expected = {nodes: (nodes, heard) for nodes, heard in self._following[self._superstep]}
        pushed = any(task.path[0] != PULL for task in self._tasks.values())
        if pushed or self.active not in expected:
            found = f"{', '.join(self.active)}{' with inputs of their own' if pushed else ''}"
            valid = "; ".join(", ".join(nodes) or "the end" for nodes in expected)
            raise refused(f"program.{', '.join(self._superstep[0])}", found, f"next {valid}")
        self._superstep = expected[self.active]

    def _end_superstep(self, tasks: Collection[WritesProtocol]) -> None:
        keys, triggers = self._graph.output_channels, self._graph.trigger_to_nodes
        updated = apply_writes(self._checkpoint, self._channels, tasks, increment, triggers)
        if not updated.isdisjoint((keys,) if isinstance(keys, str) else keys):
            writes = [write for task in tasks for write in task.writes]
            for latest in map_output_values(keys, writes, self._channels):
                self._latest = latest
        self._step += 1
        if self._step > self._stop:
            message = (
                f"Recursion limit of {self._stop} reached without hitting a stop condition. You "
                "can increase the limit by setting the `recursion_limit` config key."
            )
            code = ErrorCode.GRAPH_RECURSION_LIMIT
            raise GraphRecursionError(create_error_message(message=message, error_code=code))
        prepared = prepare_next_tasks(
            self._checkpoint,
            [],
            self._graph.nodes,
            self._channels,
            self._managed,
            self._config,
            self._step,
            self._stop,
            for_execution=True,
            store=None,
            checkpointer=None,
            manager=self._callbacks,
            trigger_to_nodes=triggers,
            updated_channels=updated,
        )
        self._tasks = {task.name: task for task in prepared.values()}


def _without_tasks(node: str) -> dict[str, Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refused(f"program.{node}", "a call of a task", "functions that are no tasks")

    return {CONFIG_KEY_CALL: refuse}


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
