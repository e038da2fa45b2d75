"""Items of a list are searched while the list is written, and no value is another for that."""

from __future__ import annotations

from typing import Any

import pytest
from accel_harness import PATIENCE_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from list_harness import OFF, ON, Awaited, echo, echoing, engines, fan_out

from rag_accel.graph.item_lists import read_items
from rag_accel.testing import FakeEngine
from rag_accel.workflows import Synthesis, advanced_document_qa

# What is found -----------------------------------------------------------------------------------

TEXTS = {
    "none": "",
    "fewer": "one",
    "exact": "- one\n- two\n- three\n",
    "more": "1. one\n2. two\n3. three\n4. four\n5. five",
    "json": 'Sure:\n```json\n["one", "two", "three"]\n```',
    "cut off": '{"queries": ["one", "two", "thr',
    "repeats": "one\none\ntwo\nthree",
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text('ab\n-1.["],{} ', max_size=30), st.integers(1, 6), st.integers(1, 4))
def test_whatever_is_written_the_result_is_that_without_the_pass(
    text: str, steps: int, count: int
) -> None:
    results: list[Any] = []
    for passes in (OFF, ON):
        with engines(echoing(steps), passes) as acc:
            results.append(acc.run(fan_out(count), input=text))
    assert results[0] == results[1]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_document_qa_answers_as_without_the_pass(text: str) -> None:
    graph = advanced_document_qa(
        expand_prompt="{input}", synthesis=Synthesis("stuff", stuff_prompt="{docs} {expansion}")
    )
    results: list[Any] = []
    for passes in (OFF, ON):
        with engines(echoing(), passes, reranker=FakeEngine()) as acc:
            found = ["queries", "docs", "answer"]
            results.append(acc.run(graph, outputs=found, input=text))
    assert results[0] == results[1]
    queries = results[0]["queries"]
    assert len(queries) == 3
    assert queries == (*read_items(text), text, text, text)[:3]


def test_requests_that_share_all_engines_keep_their_own_items() -> None:
    texts = [f"{n} a\n{n} b\n{n} c" for n in range(20)]
    with engines(echoing()) as acc:
        handles = [acc.submit(fan_out(3), input=text) for text in texts]
        for text, handle in zip(texts, handles, strict=True):
            assert handle.result(PATIENCE_S)[0] == tuple(text.splitlines())


# When it is found --------------------------------------------------------------------------------


def test_the_first_search_ends_before_the_list_does() -> None:
    search, steps = Awaited(), 0

    def last_step_waits(payload: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            search.wait()
        return echo(payload)

    llm = echoing(compute=last_step_waits)
    with engines(llm, index=FakeEngine(compute=search)) as acc:
        found = acc.run(fan_out(), input="one\n" + "second " * 10)
    assert found[0] == ("one", "second " * 9 + "second")
    assert len(found[1]) == len(found[2]) == 2
