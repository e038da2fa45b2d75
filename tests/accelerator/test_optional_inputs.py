"""Inputs that a request may leave out, and functions with a form for threads and one for loops."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rag_accel import END, START, Accelerator, GraphError, RAGraph, Server
from rag_accel.accelerator import current_request
from rag_accel.graph.framework_calls import FrameworkCall
from rag_accel.graph.text import format
from rag_accel.serving.native import ServedRAGraph


def _greeting() -> RAGraph:
    graph = RAGraph(["input", "greeting"], optional="greeting")
    graph.add_function("said", lambda who, how: f"{how} {who}", inputs=["input", "greeting"])
    return graph.add_edge(START, "said").add_edge("said", END)


def test_an_optional_input_is_none_where_it_is_left_out() -> None:
    with Accelerator() as accelerator:
        assert accelerator.run(_greeting(), input="Ada") == "None Ada"
        assert accelerator.run(_greeting(), input="Ada", greeting="Hello") == "Hello Ada"
        assert accelerator.submit(_greeting(), input="Ada").result() == "None Ada"


@pytest.mark.parametrize("inputs", [{}, {"greeting": "Hello"}, {"input": "Ada", "other": 1}])
def test_other_inputs_are_as_strict_as_before(inputs: dict[str, Any]) -> None:
    with Accelerator() as accelerator, pytest.raises(GraphError, match="do not fit"):
        accelerator.run(_greeting(), **inputs)


def test_an_optional_input_is_one_of_the_inputs() -> None:
    with pytest.raises(GraphError, match="none of the graph's inputs") as raised:
        RAGraph(["input"], optional=["config"])
    assert raised.value.valid == "input"


def test_the_text_names_it_and_an_edit_keeps_it() -> None:
    graph = _greeting().freeze()
    assert format(graph).startswith("ragraph(input, greeting)  optional=greeting\n")
    assert graph.edit(unlink=[("said", END)]).optional == ("greeting",)


def test_a_server_and_http_ask_for_the_others_only() -> None:
    with Accelerator() as accelerator:
        assert ServedRAGraph(_greeting(), accelerator).inputs == ("input",)
    with Server() as server:
        assert server.result(server.add_request("Ada", _greeting())) == "None Ada"


def _in_thread(value: Any) -> Any:
    return "thread", threading.get_ident(), current_request.get()


async def _on_loop(value: Any) -> Any:
    return "loop", threading.get_ident(), current_request.get()


async def test_a_loop_calls_the_form_for_loops_and_a_thread_the_other() -> None:
    call = FrameworkCall("forms", _in_thread, _on_loop, "name")
    graph = RAGraph().add_function("forms", call, inputs="input")
    graph.add_edge(START, "forms").add_edge("forms", END)
    with Accelerator() as accelerator:
        of_run = accelerator.run(graph, input=1)
        of_submit = accelerator.submit(graph, input=1).result(10.0)
        of_arun = await accelerator.arun(graph, input=1)
    assert [found[0] for found in (of_run, of_submit, of_arun)] == ["thread", "thread", "loop"]
    assert of_arun[1] == threading.get_ident()
    identities = [found[2] for found in (of_run, of_submit, of_arun)]
    assert all(identity.accelerator is accelerator for identity in identities)
    assert len({identity.request for identity in identities}) == 3
    assert {identity.program for identity in identities} == {"name"}
    assert current_request.get() is None


def test_other_functions_are_in_no_programs_request() -> None:
    graph = RAGraph().add_function("said", lambda _: current_request.get(), inputs="input")
    graph.add_edge(START, "said").add_edge("said", END)
    with Accelerator() as accelerator:
        assert accelerator.run(graph, input=1) is None
