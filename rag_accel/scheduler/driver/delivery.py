"""Carry out commands: steps to workers, permits and outcomes to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rag_accel.engine_api import StepBudget
from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    DropEngine,
    EndNode,
    EndRequest,
    InterruptStep,
    StartCall,
    StartStep,
    WakeAt,
)
from rag_accel.scheduler.driver.clients import Clients
from rag_accel.scheduler.driver.outcome import Result
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import EngineName, NodeKey

Results = dict[NodeKey, Result]


class Delivery:
    """Hold what the commands of one event need: who is there, and what a step produced."""

    __slots__ = ("_claimed", "_results", "_shared", "clients", "granted", "workers")

    def __init__(
        self,
        clients: Clients,
        workers: dict[EngineName, EngineWorker],
        granted: set[NodeKey],
        results: Results,
        commands: list[Command],
    ) -> None:
        self.clients = clients
        self.workers = workers
        self.granted = granted
        self._results = results
        self._claimed: set[NodeKey] = set()
        #: leaders whose result object others get, too
        self._shared = {
            command.leader
            for command in commands
            if isinstance(command, EndNode) and command.leader is not None
        }

    def end_node(self, command: EndNode) -> None:
        """Hand a primitive's outcome and result to whoever waits for it."""
        node = command.node
        shared = command.leader is not None or node in self._shared
        result = self._results.get(command.leader or node)
        if self.clients.end_node(node, command.outcome, result, shared):
            self._claimed.add(node)

    def release_unclaimed(self, worker: EngineWorker) -> None:
        """Free the engine's state of results that came too late for anybody to want them."""
        handles = tuple(
            result.handle
            for node, result in self._results.items()
            if result.handle is not None and node not in self._claimed
        )
        if handles:
            worker.release(handles)


def carry_out(command: Command, delivery: Delivery) -> None:
    """Do what one command says."""
    _EXECUTE[type(command)](delivery, command)


def _start_step(delivery: Delivery, command: StartStep) -> None:
    parts = {part.node: part for part in command.parts}
    find = delivery.clients.find
    members = tuple((node, find(node), parts.get(node)) for node in command.admitted)
    budget = StepBudget(command.time_s, command.threads)
    delivery.workers[command.engine].start(command.step, members, budget)


def _start_call(delivery: Delivery, command: StartCall) -> None:
    client = delivery.clients.find(command.node)
    if client is None:
        raise InvalidTransitionError(
            "nobody waits for a call that may run now",
            where=f"{command.node.request}/{command.node.node}",
        )
    delivery.granted.add(command.node)
    client.granted(command.node)


def _end_request(delivery: Delivery, command: EndRequest) -> None:
    delivery.clients.end_request(command.request, command.outcome, command.node)


def _cancel_work(delivery: Delivery, command: CancelWork) -> None:
    delivery.workers[command.engine].cancel(command.nodes)


def _interrupt_step(delivery: Delivery, command: InterruptStep) -> None:
    delivery.workers[command.engine].interrupt()


def _drop_engine(delivery: Delivery, command: DropEngine) -> None:
    delivery.workers.pop(command.engine).stop()


def _wake_at(delivery: Delivery, command: WakeAt) -> None:
    """Do nothing: the driver reads the time from the state."""


_EXECUTE: dict[type, Callable[[Delivery, Any], None]] = {
    StartStep: _start_step,
    StartCall: _start_call,
    EndNode: Delivery.end_node,
    EndRequest: _end_request,
    CancelWork: _cancel_work,
    InterruptStep: _interrupt_step,
    DropEngine: _drop_engine,
    WakeAt: _wake_at,
}
