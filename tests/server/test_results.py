"""Requests start at once, and each result is handed out once, in the order of their ends."""

from __future__ import annotations

import threading

import pytest
from ends_kit import in_thread
from server_harness import (
    PATIENCE_S,
    Doors,
    end_in_order,
    function,
    generation,
    serving,
    wait_until_ended,
)

from rag_accel import END, START, Accelerator, ConfigError, DeadlineError, RAGraph, SchedulingError
from rag_accel.server import ServedId, Server
from rag_accel.server.waiting import Listeners
from rag_accel.testing import FakeEngine, compute


def test_results_come_in_the_order_in_which_requests_ended() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        ids = {name: server.add_request(name, generation()) for name in "abc"}
        end_in_order(server, doors, "b", "c", "a")
        found = server.ready()
        assert [result.id for result in found] == [ids["b"], ids["c"], ids["a"]]
        assert [result.output for result in found] == ["B", "C", "A"]
        assert [result.state for result in found] == ["finished"] * 3


def test_a_result_is_handed_out_once() -> None:
    with serving(llm=str.upper) as server:
        id = server.add_request("x", generation())
        assert len(server.ready(PATIENCE_S)) == 1
        assert server.ready() == []
        assert list(server) == []
        with pytest.raises(SchedulingError, match="no such result"):
            server.wait(id)


def test_ready_does_not_wait_unless_told_to() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        server.add_request("a", generation())
        assert server.ready() == []
        assert server.ready(0.01) == []
        doors.open("a")
        assert [result.output for result in server.ready(None)] == ["A"]


def test_ready_wakes_when_a_request_ends() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        thread, found = in_thread(lambda: server.ready(PATIENCE_S))
        server.add_request("a", generation())
        doors.wait_until_entered("a")
        doors.open("a")
        thread.join(PATIENCE_S)
        assert [result.output for result in found[0]] == ["A"]


def test_iteration_ends_when_nothing_lives_and_nothing_is_left() -> None:
    with serving(llm=str.upper) as server:
        for name in "abc":
            server.add_request(name, generation())
        assert sorted(result.output for result in server) == ["A", "B", "C"]
        assert list(server) == []


def test_what_is_added_while_iterating_is_yielded_too() -> None:
    with serving(llm=str.upper) as server:
        server.add_request("1", generation())
        seen: list[str] = []
        for result in server:
            seen.append(result.output)
            if len(seen) < 4:
                server.add_request(str(len(seen) + 1), generation())
        assert seen == ["1", "2", "3", "4"]


def test_leaving_an_iteration_early_loses_nothing() -> None:
    with serving(llm=str.upper) as server:
        for name in "abc":
            server.add_request(name, generation())
        wait_until_ended(server, 3)
        first = next(iter(server)).output
        assert sorted([first, *(result.output for result in server.ready())]) == ["A", "B", "C"]


def test_the_caller_that_waits_for_a_request_gets_it_and_no_other_does() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        first = server.add_request("a", generation())
        thread, found = in_thread(lambda: server.result(first, PATIENCE_S))
        assert list(server) == []  # ends once the only live request is waited for
        second = server.add_request("b", generation())
        with pytest.raises(SchedulingError, match="somebody waits"):
            server.wait(first)
        end_in_order(server, doors, "a", "b")
        thread.join(PATIENCE_S)
        assert found == ["A"]
        assert [result.id for result in server.ready()] == [second]


def test_iteration_does_not_wait_for_what_another_caller_waits_for() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        id = server.add_request("a", generation())
        iterating, seen = in_thread(lambda: list(server))
        waiting, found = in_thread(lambda: server.result(id, PATIENCE_S))
        iterating.join(PATIENCE_S)
        assert seen == [[]]
        doors.open("a")
        waiting.join(PATIENCE_S)
        assert found == ["A"]


def test_who_stops_waiting_leaves_the_result_to_the_others() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        id = server.add_request("a", generation())
        with pytest.raises(DeadlineError, match="no result yet"):
            server.result(id, 0.01)
        end_in_order(server, doors, "a")
        assert [result.id for result in server.ready()] == [id]


def test_what_has_ended_can_be_waited_for_by_its_id() -> None:
    with serving(llm=str.upper) as server:
        ids = [server.add_request(name, generation()) for name in "abc"]
        wait_until_ended(server, 3)
        assert server.wait(ids[1]).output == "B"
        assert {result.id for result in server.ready()} == {ids[0], ids[2]}


@pytest.mark.parametrize("id", [0, 2, -1, "1", None, [1]])
def test_an_id_that_was_never_given_is_refused(id: object) -> None:
    with serving(llm=str.upper) as server:
        server.add_request("x", generation())
        with pytest.raises(SchedulingError, match="no such result"):
            server.wait(id)  # pyright: ignore[reportArgumentType]
        server.drain()


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_bad_timeout_is_refused_and_costs_no_result(timeout_s: float) -> None:
    with serving(llm=str.upper) as server:
        id = server.add_request("x", generation())
        wait_until_ended(server, 1)
        with pytest.raises(ConfigError, match="timeout_s"):
            server.ready(timeout_s)
        with pytest.raises(ConfigError, match="timeout_s"):
            server.wait(id, timeout_s)
        assert [result.output for result in server.ready()] == ["X"]


def test_requests_of_different_workflows_share_the_steps_of_an_engine() -> None:
    opened = threading.Event()

    def gated(payload: object) -> object:
        assert opened.wait(PATIENCE_S)
        return compute(payload)

    engine = FakeEngine(compute=gated)
    pair = RAGraph()
    pair.add_generation("one", prompt="1 {input}").add_generation("two", prompt="2 {one}")
    pair.add_edge(START, "one").add_edge("one", "two").add_edge("two", END)
    with serving(llm=engine) as server:
        for number in range(4):
            server.add_request(f"a{number}", generation(), program="single")
            server.add_request(f"b{number}", pair, program="pair")
        opened.set()
        found = {result.program: result.output for result in server}
    assert found["single"].startswith("reply to: a")
    assert found["pair"].startswith("reply to: 2 reply to: 1 b")
    requests = [{member.request_id for member in batch} for batch in engine.served]
    assert max(len(batch) for batch in requests) > 1


def test_the_value_of_a_request_is_the_only_input_not_given_by_name() -> None:
    with serving() as server:
        both = function(lambda one, other: (one, other), ["question", "graph"])
        assert server.result(server.add_request("q", both, graph="g"), PATIENCE_S) == ("q", "g")
        three = function(lambda *values: values, ["other", "input", "more"])
        id = server.add_request("i", three, other="o", more="m")
        assert server.result(id, PATIENCE_S) == ("o", "i", "m")


def test_outputs_can_be_asked_for_by_name() -> None:
    with serving(llm=str.upper) as server:
        id = server.add_request("x", generation("say {input}"), outputs=["input", "text"])
        assert server.result(id, PATIENCE_S) == {"input": "x", "text": "SAY X"}


def test_a_workflow_without_a_name_is_named_after_its_stages() -> None:
    with serving(llm=str.upper) as server:
        server.add_request("x", generation())
        assert next(iter(server)).program == "text"


def test_an_accelerator_of_the_users_serves_and_stays_open() -> None:
    with Accelerator(llm=str.upper) as accelerator:
        with Server(accelerator=accelerator) as server:
            assert server.accelerator is accelerator
            assert server.result(server.add_request("x", generation()), PATIENCE_S) == "X"
        assert accelerator.run(generation(), input="y") == "Y"
        with pytest.raises(ConfigError, match="found llm, max_batch"):
            Server(accelerator=accelerator, llm=str.upper, max_batch=3)


@pytest.mark.parametrize("bound", [0, -1, 1.5, None])
def test_a_bad_bound_on_results_is_refused(bound: object) -> None:
    with pytest.raises(ConfigError, match="max_unfetched"):
        Server(max_unfetched=bound)  # pyright: ignore[reportArgumentType]


def test_a_caller_that_waits_no_more_is_not_remembered() -> None:
    listeners = Listeners()
    for key in (None, ServedId(1), ServedId(2)):
        assert listeners.wait(key, lambda: None, 0) is None
        assert listeners.wait(key, lambda: True, None)
    assert listeners._waiting == {}  # pyright: ignore[reportPrivateUsage]
