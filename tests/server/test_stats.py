"""Statistics count what became of requests, by workflow."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_harness import PATIENCE_S, Doors, function, generation, serving

from rag_accel.server import Server
from rag_accel.server.stats import MAX_PROGRAMS, OTHERS, WINDOW, WorkflowCounters, summarise

LATENCIES = st.lists(st.floats(0, 1000), max_size=50)


def test_stats_count_by_workflow_and_in_all() -> None:
    def fail(text: str) -> str:
        raise LookupError(text)

    with Doors("a", "b") as doors, serving(llm=doors) as server:
        for name in "ab":
            server.result(server.add_request(name, generation(), program="good"), PATIENCE_S)
        server.wait(server.add_request("x", function(fail), program="bad"), PATIENCE_S)
        unwanted = server.add_request("c", generation(), program="good")
        server.cancel(unwanted)
        server.wait(unwanted, PATIENCE_S)
        server.add_request("d", generation(), program="live")
        stats = server.stats()
        totals = {name: stats[name] for name in ("live", "finished", "failed", "cancelled")}
        assert totals == {"live": 1, "finished": 2, "failed": 1, "cancelled": 1}
        assert list(stats["workflows"]) == ["good", "bad", "live"]
        good = stats["workflows"]["good"]
        assert (good["finished"], good["cancelled"], good["latency_s"]["count"]) == (2, 1, 2)
        assert stats["workflows"]["bad"]["failed"] == 1
        assert stats["workflows"]["live"]["live"] == 1
        doors.open("c", "d")


def test_latency_is_measured_from_the_request_to_its_end() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        slow = server.add_request("slow", generation())
        doors.wait_until_entered("slow")
        doors.open("fast")
        fast = server.wait(server.add_request("fast", generation()), PATIENCE_S)
        doors.open("slow")
        assert 0 < fast.latency_s < server.wait(slow, PATIENCE_S).latency_s < PATIENCE_S


def test_stats_hold_what_the_accelerator_measured() -> None:
    with serving(llm=str.upper) as server:
        server.result(server.add_request("a", generation()), PATIENCE_S)
        engines: Any = server.stats()["accelerator"]["engines"]
        assert engines["llm"]["items"] == 1


@given(LATENCIES)
def test_a_quantile_is_the_smallest_latency_that_enough_do_not_exceed(values: list[float]) -> None:
    summary = summarise(values)
    assert summary["count"] == len(values)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        found = summary[name]  # pyright: ignore[reportGeneralTypeIssues]
        if not values:
            assert found is None
            continue
        needed = math.ceil(share * len(values))
        assert found in values
        assert sum(value <= found for value in values) >= needed
        assert sum(value < found for value in values) < needed


def test_latencies_are_of_the_newest_requests_only() -> None:
    tally = WorkflowCounters()
    for number in range(WINDOW + 10):
        tally.started("x")
        tally.ended("x", "finished", float(number))
    summary = tally.workflows()["x"]["latency_s"]
    assert (summary["count"], summary["max"]) == (WINDOW, WINDOW + 9)
    assert tally.workflows()["x"]["finished"] == WINDOW + 10


def test_workflows_without_end_share_one_row() -> None:
    tally = WorkflowCounters()
    for number in range(MAX_PROGRAMS + 5):
        tally.started(str(number))
        tally.ended(str(number), "failed", 0.0)
    rows = tally.workflows()
    assert len(rows) == MAX_PROGRAMS + 1
    assert (rows[OTHERS]["failed"], rows[OTHERS]["live"]) == (5, 0)
    assert rows["0"]["failed"] == 1


def test_the_example_of_the_docstring_prints_what_it_says() -> None:
    doc = textwrap.dedent("    " + (Server.__doc__ or ""))
    example = textwrap.dedent(doc.partition("::\n")[2].partition("\nprints ")[0])
    assert "server.add_request" in example
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert said == ["ANSWER ME", "hyde -> [1] FOUND BY WRITE A PASSAGE ON RAG"]
    for line in said:
        assert f"``{line}``" in doc


@pytest.mark.parametrize("name", ["x" * 500])
def test_a_name_made_of_stages_is_short(name: str) -> None:
    graph = generation()
    graph.add_function(name, str.upper, inputs="input").add_edge("text", name)
    with serving(llm=str.upper) as server:
        server.result(server.add_request("a", graph), PATIENCE_S)
        (row,) = server.stats()["workflows"]
        assert row.startswith("text > xxx")
        assert len(row) == 80
