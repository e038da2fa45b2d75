"""Know who waits for what, and tell them."""

from __future__ import annotations

from typing import Protocol

from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.driver.outcome import Result
from rag_accel.scheduler.messages import LeafArrived, NodeKey, Outcome, RequestArrived, RequestId
from rag_accel.scheduler.state import SchedulerState


class GraphClient(LeafClient, Protocol):
    """Be told about a whole request as well as about its primitives."""

    def request_ended(self, outcome: Outcome, node: NodeKey | None) -> None:
        """Learn that the request is over; ``node`` is the one that failed it."""
        ...


class Clients:
    """Hold the clients of everything that lives.

    Changed by whoever has the turn (``turns.py``); a worker may look one up.
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

    def add_graph(self, event: RequestArrived, client: GraphClient) -> None:
        """Take in the client of a whole request."""
        self._graphs[event.request] = client

    def find(self, node: NodeKey) -> LeafClient | None:
        """Return who waits for a primitive, ``None`` if nobody does any more."""
        return self._leaves.get(node) or self._graphs.get(node.request)

    def is_graph(self, request: RequestId) -> bool:
        """Tell whether a request is known as a whole."""
        return request in self._graphs

    def end_node(
        self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool
    ) -> bool:
        """Tell a primitive's outcome; a leaf is then forgotten.

        Return whether somebody now answers for the result's handle: graphs do, leaves have no use
        for one.
        """
        leaf = self._leaves.pop(node, None)
        client = leaf or self._graphs.get(node.request)
        if client is not None:
            client.ended(node, outcome, result, shared)
        return client is not None and leaf is None

    def end_request(self, request: RequestId, outcome: Outcome, node: NodeKey | None) -> None:
        """Tell a request's outcome and forget it."""
        client = self._graphs.pop(request, None)
        if client is not None:
            client.request_ended(outcome, node)

    def fail(self, node: NodeKey, error: BaseException) -> None:
        """Fail the leaf of this name, or the whole request it belongs to."""
        result = Result(error=error)
        if node in self._leaves:
            self.end_node(node, "failed", result, False)
        elif (client := self._graphs.pop(node.request, None)) is not None:
            client.ended(node, "failed", result, False)
            client.request_ended("failed", node)

    def strays(self, state: SchedulerState) -> list[NodeKey]:
        """Return those who wait for something that the core does not know any more."""
        leaves = [key for key in self._leaves if not _knows(state, key)]
        graphs = [NodeKey(request, "") for request in self._graphs if state.find(request) is None]
        return leaves + graphs

    def close(self) -> None:
        """Tell everybody who is left that the accelerator is closed."""
        for node in list(self._leaves):
            self.end_node(node, "closed", None, False)
        for request in list(self._graphs):
            self.end_request(request, "closed", None)


def _knows(state: SchedulerState, key: NodeKey) -> bool:
    run = state.find(key.request)
    return run is not None and key.node in run.nodes
