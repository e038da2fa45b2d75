"""Workflows are graphs like any other: they verify, compare, print, lower and share a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from graph_text import parse, references
from idle_accelerators import soon_idle
from workflow_harness import WORKFLOWS, longest_first

from rag_accel import Accelerator, RAGraph, workflows
from rag_accel.graph.spec import offenders
from rag_accel.graph.text import format
from rag_accel.server import Server
from rag_accel.testing import FakeEngine

everyone = pytest.mark.parametrize("make", WORKFLOWS.values(), ids=WORKFLOWS.keys())


def test_every_workflow_is_tried_and_says_where_it_comes_from() -> None:
    public = {name: getattr(workflows, name) for name in workflows.__all__}
    made = {
        name: function
        for name, function in public.items()
        if inspect.isfunction(function) and "RAGraph" in str(function.__annotations__["return"])
    }
    assert set(made) == set(WORKFLOWS)
    for function in made.values():
        assert "section " in (inspect.getdoc(function) or "")


@everyone
def test_a_workflow_keeps_all_rules_and_equals_itself(make: Callable[[], RAGraph]) -> None:
    assert offenders(make(), "ragraph") == ()
    assert make().freeze() == make().freeze()


@everyone
def test_a_workflow_prints_and_parses_back(make: Callable[[], RAGraph]) -> None:
    graph = make().freeze()
    assert parse(format(graph), functions=references(graph)) == graph


def engines() -> dict[str, Any]:
    return {
        "llm": FakeEngine(steps=2),
        "embedder": FakeEngine(),
        "index": FakeEngine(),
        "reranker": longest_first,
    }


@everyone
def test_a_workflow_can_be_lowered(make: Callable[[], RAGraph]) -> None:
    with Accelerator(**engines()) as accelerator:
        assert "DECODING" in accelerator.explain(make(), "p-graph")


def test_all_workflows_at_once_give_what_each_gives_alone() -> None:
    questions = [f"What is {number}?" for number in range(5)]
    graphs = {name: make() for name, make in WORKFLOWS.items()}
    alone: dict[tuple[str, str], Any] = {}
    with Accelerator(**engines()) as accelerator:
        for name, graph in graphs.items():
            for question in questions:
                given = _given(graph, question)
                alone[name, question] = accelerator.run(graph, input=question, **given)
    with Server(**engines()) as server:
        asked: dict[int, tuple[str, str]] = {}
        for question in questions:
            for name, graph in graphs.items():
                id = server.add_request(question, graph, program=name, **_given(graph, question))
                asked[id] = (name, question)
        found = {asked[result.id]: result.unwrap() for result in server}
        finished = {name: row["finished"] for name, row in server.stats()["workflows"].items()}
        assert soon_idle(server.accelerator)
    assert found == alone
    assert finished == dict.fromkeys(WORKFLOWS, len(questions))


def _given(graph: RAGraph, question: str) -> dict[str, Any]:
    return {"documents": [f"About: {question}"]} if "documents" in graph.freeze().inputs else {}
