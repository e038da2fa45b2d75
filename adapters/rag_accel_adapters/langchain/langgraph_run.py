"""One run of a compiled LangGraph whose nodes are called from outside, superstep by superstep.

What is done between nodes is LangGraph's own: channels and reducers, the order of writes, the
config and callbacks of each node, the functions of conditions, which it calls after the node that
they belong to. The graph itself has no run that callbacks hear of.

LangGraph may change these functions: importing this raises an ImportError where it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import DEFAULT_RECURSION_LIMIT, ensure_config
from langgraph._internal._constants import CONFIG_KEY_CALL, INPUT, PULL
from langgraph.errors import (
    EmptyInputError,
    ErrorCode,
    GraphBubbleUp,
    GraphRecursionError,
    create_error_message,
)
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

from rag_accel_adapters.langchain.langgraph_edges import START, Active, Superstep, refused
from rag_accel_adapters.langchain.plan import check_concurrency, child_manager

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
        self._end_superstep([PregelTaskWrites((), INPUT, writes, [])])

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
