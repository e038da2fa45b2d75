"""Many threads add and fetch; nothing is lost, handed out twice or left behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from typing import Any

from ends_kit import in_thread
from server_harness import (
    PATIENCE_S,
    become_idle,
    folding,
    function,
    generation,
    serving,
)

from rag_accel import BusyError, ForkedError
from rag_accel.server import Server
from rag_accel.testing import FakeEngine


def test_nothing_is_left_after_500_mixed_requests() -> None:
    def fail(text: str) -> str:
        raise LookupError(text)

    graphs = {
        "generation": generation(),
        "function": function(str.upper),
        "failing": function(fail),
        "folding": folding(lambda left, right: left + right),
    }
    names = list(graphs)
    with serving(llm=FakeEngine(steps=2)) as server:
        for number in range(500):
            program = names[number % len(names)]
            server.add_request(str(number), graphs[program], program=program)
        found = list(server)
        assert len({result.id for result in found}) == len(found) == 500
        assert Counter(result.state for result in found) == {"finished": 375, "failed": 125}
        assert {result.output for result in found if result.program == "generation"} == {
            f"reply to: {number}" for number in range(0, 500, 4)
        }
        stats = server.stats()
        assert (stats["live"], stats["unfetched"], stats["dropped"]) == (0, 0, 0)
        become_idle(server)


def test_many_threads_fetch_each_result_once() -> None:
    fetched: list[int] = []
    lock = threading.Lock()

    def fetch(server: Server, stop: threading.Event) -> None:
        while not stop.is_set():
            results = server.ready(0.05)
            with lock:
                fetched.extend(result.id for result in results)

    def add(server: Server) -> None:
        for number in range(50):
            server.add_request(str(number), generation())

    stop = threading.Event()
    with serving(llm=str.upper) as server:
        fetching = [in_thread(lambda: fetch(server, stop)) for _ in range(4)]
        adding = [in_thread(lambda: add(server)) for _ in range(4)]
        for thread, raised in adding:
            thread.join(PATIENCE_S)
            assert raised == [None]
        left = server.drain(PATIENCE_S)
        stop.set()
        for thread, _ in fetching:
            thread.join(PATIENCE_S)
    assert sorted([*fetched, *(result.id for result in left)]) == list(range(1, 201))


def test_many_threads_each_get_their_own_answer_under_back_pressure() -> None:
    wrong: list[Any] = []

    def ask(server: Server, name: str) -> None:
        for number in range(20):
            text = f"{name}{number}"
            while True:
                try:
                    id = server.add_request(text, generation())
                except BusyError:
                    continue
                break
            if (answer := server.result(id, PATIENCE_S)) != text.upper():
                wrong.append(answer)

    with serving(llm=str.upper, max_requests=3) as server:
        asking = [in_thread(lambda name=name: ask(server, name)) for name in "abcdefgh"]
        for thread, raised in asking:
            thread.join(PATIENCE_S)
            assert raised == [None]
        assert server.stats()["finished"] == 160
    assert wrong == []


class Payload(str):
    """Be a text to hold a weak reference to."""

    __slots__ = ("__weakref__",)


def test_a_request_is_forgotten_with_its_result() -> None:
    with serving(llm=lambda prompt: "fixed") as server:
        payload = Payload("x")
        gone = weakref.ref(payload)
        server.add_request(payload, generation())
        del payload
        assert [result.output for result in server] == ["fixed"]
        become_idle(server)
        gc.collect()
        assert gone() is None


def test_a_forked_child_is_told_and_the_parent_serves_on() -> None:
    with serving(llm=str.upper) as server:
        id = server.add_request("a", generation())
        if (child := os.fork()) == 0:
            os._exit(_named_errors_in_child(server, id))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert server.result(id, PATIENCE_S) == "A"


def _named_errors_in_child(server: Server, id: Any) -> int:
    calls = [
        lambda: server.add_request("b", generation()),
        lambda: server.ready(),
        lambda: list(server),
        lambda: server.result(id),
        lambda: server.cancel(id),
        lambda: server.drain(),
        lambda: server.stats(),
    ]
    wrong = 0
    for call in calls:
        try:
            call()
        except ForkedError:
            continue
        except BaseException as error:
            print("in the child:", repr(error), file=sys.stderr)
        wrong += 1
    server.close()
    return wrong
