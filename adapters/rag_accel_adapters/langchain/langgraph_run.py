"""One run of a compiled LangGraph whose nodes are called from outside, superstep by superstep.

What is done between nodes is LangGraph's own: channels and reducers, the order of writes, the
config and callbacks of each node, the functions of conditions, which it calls after the node that
they belong to. The graph itself has no run that callbacks hear of.
"""

from __future__ import annotations

from collections.abc import Collection
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

from rag_accel.errors import ConfigError, TranslationError
from rag_accel_adapters.langchain.plan import child_manager

#: nodes that run in one superstep, in order
Active = tuple[str, ...]


class GraphRun:
    """The state of one run, and the nodes that are next.

    Args:
        graph: the compiled graph, without a checkpointer.
        given: the input.
        config: the graph's and the caller's.
        manager: the callbacks that the config asks for.

    Raises:
        ConfigError: if the input is a ``Command``.
        EmptyInputError: if there is no input, as LangGraph raises it.
    """

    def __init__(self, graph: Any, given: Any, config: RunnableConfig, manager: Any) -> None:
        if isinstance(given, Command):
            raise ConfigError(
                "a graph cannot be resumed",
                where="input",
                found="a Command",
                valid="the state to begin with",
                hint="call the program itself",
            )
        limit = config.get("recursion_limit", DEFAULT_RECURSION_LIMIT)
        if limit < 1:
            raise ValueError("recursion_limit must be at least 1")
        if "ls_integration" not in manager.metadata:
            manager.add_metadata({"ls_integration": "langgraph"})
        self._graph, self._config = graph, config
        self._callbacks: Any = _NodeCallbacks(manager)
        self._checkpoint = empty_checkpoint()
        self._channels, self._managed = channels_from_checkpoint(graph.channels, self._checkpoint)
        self._step, self._stop = -1, limit
        self._tasks: dict[str, PregelExecutableTask] = {}
        #: the output so far
        self.latest: Any = None
        writes = list(map_input(graph.input_channels, given))
        if not writes:
            raise EmptyInputError(f"Received no input for {graph.input_channels}")
        self._updated = self._apply([PregelTaskWrites((), INPUT, writes, [])])
        self._prepare()

    @property
    def active(self) -> Active:
        """Return the nodes that are next, in order; none at the end."""
        return tuple(sorted(self._tasks))

    def call(self, node: str) -> None:
        """Call a node in this thread, as LangGraph does.

        Raises:
            TranslationError: if it interrupts the run, or calls a task.
        """
        try:
            run_with_retry(self._tasks[node], None, _without_tasks(node))
        except GraphBubbleUp as signal:
            raise _not_declared(node, type(signal).__name__, "a result") from signal

    async def acall(self, node: str) -> None:
        """Call a node on this loop. Raises as ``call`` does."""
        try:
            await arun_with_retry(self._tasks[node], None, configurable=_without_tasks(node))
        except GraphBubbleUp as signal:
            raise _not_declared(node, type(signal).__name__, "a result") from signal

    def advance(self, expected: Collection[Active]) -> None:
        """End a superstep: apply what its nodes wrote and find the nodes that are next.

        Raises:
            TranslationError: if they are none of the declared.
            GraphRecursionError: as LangGraph raises it.
        """
        ended = self.active
        tasks = self._tasks.values()
        writes = [write for task in tasks for write in task.writes]
        self._updated = self._apply(tasks)
        keys = self._graph.output_channels
        if not self._updated.isdisjoint((keys,) if isinstance(keys, str) else keys):
            for latest in map_output_values(keys, writes, self._channels):
                self.latest = latest
        self._prepare()
        pushed = any(task.path[0] != PULL for task in self._tasks.values())
        if pushed or self.active not in expected:
            found = f"{', '.join(self.active)}{' with inputs of their own' if pushed else ''}"
            valid = "; ".join(", ".join(active) or "the end" for active in expected)
            raise _not_declared(", ".join(ended), found, f"next {valid}")

    def _apply(self, tasks: Collection[WritesProtocol]) -> set[str]:
        return apply_writes(
            self._checkpoint, self._channels, tasks, increment, self._graph.trigger_to_nodes
        )

    def _prepare(self) -> None:
        self._step += 1
        if self._step > self._stop:
            raise GraphRecursionError(
                create_error_message(
                    message=(
                        f"Recursion limit of {self._stop} reached "
                        "without hitting a stop condition. You can increase the "
                        "limit by setting the `recursion_limit` config key."
                    ),
                    error_code=ErrorCode.GRAPH_RECURSION_LIMIT,
                )
            )
        tasks = prepare_next_tasks(
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
            trigger_to_nodes=self._graph.trigger_to_nodes,
            updated_channels=self._updated,
        )
        self._tasks = {task.name: task for task in tasks.values()}


def config_of(graph: Any, config: RunnableConfig | None) -> RunnableConfig:
    """Return the config that a graph runs with."""
    return ensure_config(graph.config, config)


class _NodeCallbacks:
    """The callback managers of nodes, whose graph has no run."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def get_child(self, tag: str | None = None) -> Any:
        return child_manager(self._manager, tag)


def _without_tasks(node: str) -> dict[str, Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _not_declared(node, "a call of a task", "functions that are no tasks")

    return {CONFIG_KEY_CALL: refuse}


def _not_declared(node: str, found: str, valid: str) -> TranslationError:
    return TranslationError(
        "a node of the program did what its graph does not declare",
        where=f"program.{node}",
        found=found,
        valid=valid,
        hint="call the program itself; accelerate(...) runs it",
    )
