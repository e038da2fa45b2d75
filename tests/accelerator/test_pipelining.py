"""Items of a list are searched while the list is written, and no value is another for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import PATIENCE_S, WAYS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from list_harness import OFF, ON, Awaited, echo, echoing, engines, fan_out

from rag_accel.graph.item_lists import read_items
from rag_accel.testing import FakeEngine
from rag_accel.testing.emulated.device import EmulatedDevice
from rag_accel.testing.emulated.engine import EmulatedEngine
from rag_accel.testing.emulated.waiting import VirtualTime
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


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_however_many_items_come_the_result_is_that_without_the_pass(
    way: Callable[..., Any], text: str
) -> None:
    results: list[Any] = []
    for passes in (OFF, ON):
        with engines(echoing(), passes) as acc:
            results.append(way(acc, fan_out(3), input=text))
    assert results[0] == results[1]
    assert results[0][0] == read_items(text)


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


class Paused(VirtualTime):
    """Let virtual time pass at once, but stop before one step of the device."""

    def __init__(self, before: int, pause: Callable[[], None]) -> None:
        super().__init__()
        self._left = before
        self._pause = pause

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        if deadline_s is not None:
            self._left -= 1
            if self._left == 0:
                self._pause()
        super().wait_until(wake, deadline_s)


def test_on_the_emulated_engine_a_search_ends_while_the_device_decodes() -> None:
    search = Awaited()
    text = "first query\n" + "word " * 50 + "\nlast query"
    # 3 steps: the prompt, and the two words of the first line; a later word ends that line.
    time = Paused(20, search.wait)
    device = EmulatedDevice(
        "h100_like_8b",
        respond=lambda messages: text,
        clock=time,
        waiter=time,
        default_max_tokens=99,
    )
    llm = EmulatedEngine(device, owns_device=True)
    with engines(llm, index=FakeEngine(compute=search)) as acc:
        queries = acc.run(fan_out(3), input="why")[0]
    assert queries == ("first query", ("word " * 50).strip(), "last query")
