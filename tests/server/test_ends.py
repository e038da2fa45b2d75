"""Failures, deadlines, cancellation and refusals concern one request."""

from __future__ import annotations

from operator import add
from typing import Any

import pytest
from ends_kit import in_thread
from server_harness import (
    PATIENCE_S,
    Doors,
    function,
    generation,
    serving,
    wait_until_ended,
)

from rag_accel import (
    BusyError,
    ConfigError,
    DeadlineError,
    GraphError,
    RAGraph,
    RequestCancelledError,
)


def test_one_request_fails_among_others_with_the_error_that_was_raised() -> None:
    error = LookupError("no")

    def fail(text: str) -> str:
        raise error

    with serving(llm=str.upper) as server:
        first = server.add_request("a", generation())
        failing = server.add_request("b", function(fail))
        last = server.add_request("c", generation())
        found = {result.id: result for result in server.drain(PATIENCE_S)}
        assert found[failing].error is error
        assert (found[failing].state, found[failing].output) == ("failed", None)
        assert [found[first].unwrap(), found[last].unwrap()] == ["A", "C"]
        with pytest.raises(LookupError) as caught:
            found[failing].unwrap()
        assert caught.value is error


def test_a_request_past_its_deadline_fails_alone() -> None:
    with Doors("b") as doors, serving(llm=doors) as server:
        late = server.add_request("a", generation(), deadline_s=0.02)
        early = server.add_request("b", generation(), deadline_s=PATIENCE_S)
        result = server.wait(late, PATIENCE_S)
        assert result.state == "failed"
        assert isinstance(result.error, DeadlineError)
        assert server.result(early, PATIENCE_S) == "B"
        doors.open("a")


def test_a_cancelled_request_ends_alone_and_its_result_says_so() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        unwanted = server.add_request("a", generation())
        wanted = server.add_request("b", generation())
        assert server.cancel(unwanted)
        result = server.wait(unwanted, PATIENCE_S)
        assert result.state == "cancelled"
        assert isinstance(result.error, RequestCancelledError)
        doors.open("a", "b")
        assert server.result(wanted, PATIENCE_S) == "B"


def test_what_has_ended_or_never_was_cannot_be_cancelled() -> None:
    with serving(llm=str.upper) as server:
        id = server.add_request("a", generation())
        wait_until_ended(server, 1)
        assert not server.cancel(id)
        assert not server.cancel(type(id)(99))
        assert server.result(id) == "A"


def test_an_error_of_the_users_that_looks_like_a_cancellation_is_a_failure() -> None:
    def fail(text: str) -> str:
        raise RequestCancelledError("the user's")

    with serving() as server:
        assert server.wait(server.add_request("a", function(fail)), PATIENCE_S).state == "failed"


def test_past_the_bound_requests_are_refused_and_later_taken_again() -> None:
    with Doors("d") as doors, serving(llm=doors, max_requests=2) as server:
        for name in "ab":
            server.add_request(name, generation())
        for _ in range(3):
            with pytest.raises(BusyError):
                server.add_request("c", generation())
        assert (server.stats()["live"], server.stats()["refused"]) == (2, 3)
        doors.open("a", "b")
        assert len(list(server)) == 2
        assert server.result(server.add_request("d", generation()), PATIENCE_S) == "D"


def test_results_that_are_never_fetched_do_not_refuse_requests() -> None:
    with serving(llm=str.upper, max_unfetched=3, max_requests=2) as server:
        ids = []
        for number in range(7):
            ids.append(server.add_request(str(number), generation()))
            wait_until_ended(server, number + 1)
        stats = server.stats()
        assert (stats["unfetched"], stats["dropped"], stats["finished"]) == (3, 4, 7)
        assert [result.id for result in server.ready()] == ids[4:]


def test_a_result_that_is_waited_for_is_never_dropped() -> None:
    with Doors("1", "2", "3") as doors, serving(llm=doors, max_unfetched=1) as server:
        id = server.add_request("a", generation())
        thread, found = in_thread(lambda: server.result(id, PATIENCE_S))
        assert list(server) == []  # ends once the only live request is waited for
        doors.open("a")
        for number in "123":
            server.add_request(number, generation())
        thread.join(PATIENCE_S)
        assert found == ["A"]
        wait_until_ended(server, 4)
        assert server.stats()["dropped"] == 2


@pytest.mark.parametrize(
    ("graph", "inputs", "error"),
    [
        ("no graph", {}, GraphError),
        (RAGraph(), {}, GraphError),
        (generation("{unknown}"), {}, GraphError),
        (generation(), {"unknown": 1}, GraphError),
        (generation(), {"input": "twice"}, GraphError),
        (function(add, ["one", "two"]), {}, GraphError),
        (generation(), {"deadline_s": -1}, ConfigError),
        (generation(), {"outputs": ["unknown"]}, GraphError),
    ],
)
def test_a_request_that_cannot_run_is_refused_at_once(
    graph: Any, inputs: dict[str, Any], error: type[Exception]
) -> None:
    with serving(llm=str.upper) as server:
        with pytest.raises(error):
            server.add_request("x", graph, **inputs)
        stats = server.stats()
        assert stats["live"] == 0
        assert all(row["live"] == 0 for row in stats["workflows"].values())
        assert server.drain(PATIENCE_S) == []
