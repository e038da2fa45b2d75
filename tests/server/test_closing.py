"""Draining lets what lives end, closing ends it, and nothing is lost in either."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from ends_kit import in_thread
from server_harness import (
    PATIENCE_S,
    Doors,
    ended,
    folding,
    generation,
    serving,
    wait_until_ended,
)

from rag_accel import Accelerator, BusyError, ClosedError
from rag_accel.requests.execution import RunHandle
from rag_accel.server import Server
from rag_accel.testing import FakeEngine


def test_draining_lets_what_lives_end_and_returns_what_is_left() -> None:
    with Doors("a") as doors, serving(llm=doors) as server:
        ids = {server.add_request(name, generation()) for name in "ab"}
        doors.wait_until_entered("b")
        thread, left = in_thread(lambda: server.drain(PATIENCE_S))
        doors.open("b")
        thread.join(PATIENCE_S)
        assert {result.id for result in left[0]} == ids
        with pytest.raises(ClosedError, match="drained"):
            server.add_request("c", generation())


def test_draining_returns_in_time_and_what_lives_runs_on() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        id = server.add_request("a", generation())
        assert server.drain(0.01) == []
        with pytest.raises(ClosedError, match="drained"):
            server.add_request("b", generation())
        doors.open("a")
        assert [result.id for result in server.drain(PATIENCE_S)] == [id]


@pytest.mark.parametrize("shared", [False, True], ids=["its own", "a shared"])
def test_closing_ends_what_lives_with_closed_error(shared: bool) -> None:
    doors = Doors()
    accelerator = Accelerator(llm=doors, shutdown_s=PATIENCE_S) if shared else None
    parts: dict[str, Any] = {"accelerator": accelerator} if shared else {"llm": doors}
    with doors, Server(**parts) as server:
        ids = [server.add_request(name, generation()) for name in "abc"]
        thread, waiting = in_thread(lambda: server.ready(None))
        server.close()
        thread.join(PATIENCE_S)
        found = {result.id: result for result in [*waiting[0], *server.ready()]}
        assert list(found) == ids
        for result in found.values():
            assert result.state == "failed"
            assert isinstance(result.error, ClosedError)
        with pytest.raises(ClosedError):
            server.add_request("d", generation())
        assert server.stats()["live"] == 0
        doors.open(*"abc")
        server.close()
    if accelerator is not None:
        accelerator.close()


def test_closing_wakes_the_callers_that_wait_for_results() -> None:
    with Doors() as doors:
        server = Server(llm=doors)
        id = server.add_request("a", generation())
        one, found = in_thread(lambda: server.result(id))
        assert list(server) == []
        server.close()
        one.join(PATIENCE_S)
        assert isinstance(found[0], ClosedError)
        assert server.ready(None) == []
        doors.open("a")


def test_closing_keeps_what_has_ended() -> None:
    server = Server(llm=str.upper)
    server.add_request("a", generation())
    wait_until_ended(server, 1)
    server.close()
    assert [result.output for result in server.ready()] == ["A"]


def test_a_request_that_is_started_while_the_server_closes_ends() -> None:
    for _ in range(20):
        server = Server(llm=str.upper, shutdown_s=PATIENCE_S)
        thread, found = in_thread(lambda server=server: _add_until_closed(server))
        server.close()
        thread.join(PATIENCE_S)
        results = server.ready()
        assert len(results) == found[0] == ended(server)
        assert server.stats()["live"] == 0


class Interrupted(Accelerator):
    """Do something between a request's start and the return of its handle."""

    def __init__(self, meanwhile: Callable[[RunHandle], object], **parts: Any) -> None:
        super().__init__(**parts)
        self.meanwhile = meanwhile

    def submit(self, *args: Any, **kwargs: Any) -> RunHandle:
        handle = super().submit(*args, **kwargs)
        self.meanwhile(handle)
        return handle


def test_a_server_that_is_closed_while_it_starts_a_request_ends_that_too() -> None:
    with Doors() as doors:
        accelerator = Interrupted(lambda handle: server.close(), llm=doors, shutdown_s=0.01)
        server = Server(accelerator=accelerator)
        id = server.add_request("a", generation())
        assert isinstance(server.wait(id, PATIENCE_S).error, ClosedError)
        doors.open("a")
        accelerator.close()


def test_draining_does_not_wait_for_a_request_that_was_refused_meanwhile() -> None:
    draining: list[tuple[threading.Thread, list[Any]]] = []

    def refuse(handle: RunHandle) -> None:
        if not draining:
            draining.append(in_thread(lambda: server.drain(PATIENCE_S)))
            while True:
                try:
                    server.add_request("b", generation())
                except ClosedError:
                    break
                except BusyError:
                    continue
        raise BusyError("full")

    with Interrupted(refuse, llm=str.upper) as accelerator:
        server = Server(accelerator=accelerator)
        with pytest.raises(BusyError, match="full"):
            server.add_request("a", generation())
        ((thread, left),) = draining
        thread.join(PATIENCE_S / 2)
        assert left == [[]]


def test_a_result_that_no_thread_is_left_to_fold_is_an_error() -> None:
    with serving(shutdown_s=PATIENCE_S) as server:
        server.accelerator.calls.close()
        id = server.add_request("x", folding(lambda left, right: left + right))
        assert isinstance(server.wait(id, PATIENCE_S).error, ClosedError)


@pytest.mark.parametrize("before", [True, False], ids=["before it returns", "later"])
def test_a_request_that_has_ended_early_or_is_looked_at_again_counts_once(before: bool) -> None:
    handles: list[RunHandle] = []

    def meanwhile(handle: RunHandle) -> None:
        handles.append(handle)
        if before:
            handle.result(PATIENCE_S)

    with Interrupted(meanwhile, llm=str.upper) as accelerator, Server(accelerator=accelerator) as s:
        assert s.result(s.add_request("a", generation()), PATIENCE_S) == "A"
        handles[0].look()
        assert (s.stats()["finished"], s.stats()["unfetched"]) == (1, 0)


def _add_until_closed(server: Server) -> int:
    for count in range(100_000):
        try:
            server.add_request("x", generation())
        except ClosedError:
            return count
    raise AssertionError("nobody closed the server")


def test_a_server_without_references_is_freed_with_its_threads() -> None:
    server = Server(llm=FakeEngine())
    assert server.result(server.add_request("x", generation()), PATIENCE_S) == "reply to: x"
    gone = weakref.ref(server.accelerator)
    del server
    gc.collect()
    assert gone() is None
