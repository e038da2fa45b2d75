"""Commands carried out: steps to workers, permits and outcomes to clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from rag_accel.engine_api import StepBudget
from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    DropEngine,
    EndEarly,
    EndNode,
    EndRequest,
    InterruptStep,
    RetryNode,
    StartCall,
    StartFallback,
    StartStep,
    WakeAt,
)
from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.driver.outcomes import Result, late_result
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import (
    EarlyArrived,
    EngineName,
    LeafArrived,
    NodeKey,
    Outcome,
    RequestArrived,
    RequestId,
    WorkSlice,
)

logger = logging.getLogger("rag_accel.scheduler")

Results = dict[NodeKey, Result]


class Delivery:
    """The clients and step outputs that the commands of one event need."""

    __slots__ = ("_results", "_shared", "claimed", "clients", "granted", "workers")

    def __init__(
        self,
        clients: Clients,
        workers: dict[EngineName, EngineWorker],
        granted: dict[NodeKey, EngineName],
        results: Results,
        commands: list[Command],
    ) -> None:
        self.clients = clients
        self.workers = workers
        self.granted = granted
        self._results = results
        #: primitives whose client answers for the handle of their result
        self.claimed: set[NodeKey] = set()
        #: leaders whose result object others get, too
        self._shared: set[NodeKey] = set()
        for command in commands:
            if isinstance(command, EndNode) and command.leader is not None:
                self._shared.add(command.leader)

    def end_node(self, command: EndNode) -> None:
        """Hand a primitive's outcome and result to its client."""
        node = command.node
        shared = command.leader is not None or node in self._shared
        result = self._results.get(command.leader or node)
        if command.retry_after_s > 0:
            result = late_result(command.retry_after_s, f"request {node.request}")
        elif command.late is not None:
            result = Result(late=command.late)
        if self.clients.end_node(node, command.outcome, result, shared):
            self.claimed.add(node)

    def end_early(self, command: EndEarly) -> None:
        """Tell early work's client that it has ended; nobody answers for the result's handle."""
        result = self._results.get(command.node)
        self.clients.end_node(command.node, command.outcome, result, False)


def _start_step(delivery: Delivery, command: StartStep) -> None:
    parts: dict[NodeKey, WorkSlice] = {}
    for part in command.parts:
        parts[part.node] = part
    members: list[tuple[NodeKey, LeafClient | None, WorkSlice | None]] = []
    for node in command.admitted:
        members.append((node, delivery.clients.find(node), parts.get(node)))
    budget = StepBudget(command.time_s, command.threads)
    delivery.workers[command.engine].start(command.step, members, budget)


def _start_call(delivery: Delivery, command: StartCall) -> None:
    client = delivery.clients.find(command.node)
    if client is None:
        raise InvalidTransitionError(
            "nobody waits for a call that may run now",
            where=f"{command.node.request}/{command.node.node}",
        )
    client.granted(command.node)
    delivery.granted[command.node] = command.engine


def _end_request(delivery: Delivery, command: EndRequest) -> None:
    if command.retry_after_s > 0:
        result = late_result(command.retry_after_s, f"request {command.request}")
        nobody = NodeKey(command.request, "")
        delivery.clients.end_node(nobody, command.outcome, result, False)
    delivery.clients.end_request(command.request, command.outcome, command.node)


#: do what one command says, by its type
CARRY_OUT: dict[type, Callable[[Delivery, Any], None]] = {
    StartStep: _start_step,
    StartCall: _start_call,
    EndNode: Delivery.end_node,
    EndEarly: Delivery.end_early,
    EndRequest: _end_request,
    RetryNode: lambda to, command: to.clients.tell_retry(command.node),
    StartFallback: lambda to, command: to.clients.tell_fallback(command.node),
    CancelWork: lambda to, command: to.workers[command.engine].cancel(command.nodes),
    InterruptStep: lambda to, command: to.workers[command.engine].interrupt(),
    DropEngine: lambda to, command: to.workers.pop(command.engine).stop(),
    WakeAt: lambda to, command: None,  # the driver reads the time from the state
}


class GraphClient(LeafClient, Protocol):
    """A receiver of the end of a whole request as well as of its primitives' ends."""

    def request_ended(self, outcome: Outcome, node: NodeKey | None) -> None:
        """Learn that the request is over; ``node`` is the one that failed it."""
        ...

    def retry_after_s(self, node: NodeKey, error: BaseException) -> float | None:
        """Say where a primitive failed when it may be tried again, if it may; the user's code."""
        ...

    def retried(self, node: NodeKey) -> None:
        """Learn that a primitive failed and has another attempt."""
        ...

    def fell_back(self, node: NodeKey) -> None:
        """Learn that a primitive failed for good, and that its stage's fallback runs."""
        ...


class Clients:
    """The clients of all live requests and leaves.

    Changed only on the thread that has the turn (``turns.py``); a worker may look one up.
    """

    __slots__ = ("_graphs", "_leaves")

    def __init__(self) -> None:
        self._leaves: dict[NodeKey, LeafClient] = {}
        self._graphs: dict[RequestId, GraphClient] = {}

    def __len__(self) -> int:
        return len(self._leaves) + len(self._graphs)

    def add_leaf(self, event: LeafArrived, client: LeafClient) -> None:
        """Take in the client of an intercepted call."""
        self._leaves[NodeKey(event.request, event.node.name)] = client

    def add_early(self, event: EarlyArrived, client: LeafClient) -> None:
        """Take in the client of early work."""
        self._leaves[event.node] = client

    def add_graph(self, event: RequestArrived, client: GraphClient) -> None:
        """Take in the client of a whole request."""
        self._graphs[event.request] = client

    def find(self, node: NodeKey) -> LeafClient | None:
        """Return the client that waits for a primitive, ``None`` if none does any more."""
        return self._leaves.get(node) or self._graphs.get(node.request)

    def end_node(
        self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool
    ) -> bool:
        """Tell a primitive's outcome; a leaf is then forgotten.

        Return whether a client now answers for the result's handle: graphs do, leaves have no use
        for one.
        """
        leaf = self._leaves.pop(node, None)
        client = leaf or self._graphs.get(node.request)
        if client is not None:
            client.ended(node, outcome, result, shared)
        return client is not None and leaf is None

    def find_graph(self, node: NodeKey) -> GraphClient | None:
        """Return the client of the request whose own primitive this is."""
        return None if node in self._leaves else self._graphs.get(node.request)

    def tell_retry(self, node: NodeKey) -> None:
        """Tell that a primitive has another attempt."""
        client = self._graphs.get(node.request)
        if client is not None:
            client.retried(node)

    def tell_fallback(self, node: NodeKey) -> None:
        """Tell that a stage's fallback runs."""
        client = self._graphs.get(node.request)
        if client is not None:
            client.fell_back(node)

    def end_request(self, request: RequestId, outcome: Outcome, node: NodeKey | None) -> None:
        """Tell a request's outcome and forget it."""
        client = self._graphs.pop(request, None)
        if client is not None:
            client.request_ended(outcome, node)

    def fail_all(self, error: BaseException) -> list[Command]:
        """End every leaf and every request with an error; return the ends as commands."""
        result = Result(error=error)
        leaves, self._leaves = self._leaves, {}
        graphs, self._graphs = self._graphs, {}
        for node, leaf in leaves.items():
            _attempt(leaf.ended, node, "failed", result, False)
        for request, graph in graphs.items():
            _attempt(graph.ended, NodeKey(request, ""), "failed", result, False)
            _attempt(graph.request_ended, "failed", None)
        return [
            *(EndNode(node, "failed") for node in leaves),
            *(EndRequest(request, "failed") for request in graphs),
        ]

    def close(self) -> None:
        """Tell every client that is left that the accelerator is closed."""
        for node in list(self._leaves):
            self.end_node(node, "closed", None, False)
        for request in list(self._graphs):
            self.end_request(request, "closed", None)


def _attempt(tell: Callable[..., None], *news: Any) -> None:
    """Tell one client; the others must hear even if this one fails on it."""
    try:
        tell(*news)
    except Exception:
        logger.exception("a client failed on the end of its work")
