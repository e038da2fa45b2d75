"""Wherever a leaf stands in a LangGraph program, its calls are scheduled and nothing else changes.

Each case is a program with its leaf in one place, a kind of leaf, and a way to call the program.
The leaves count their own calls: a meter that errs, or a scheduler that never hears of a call, is
found whatever it says itself.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("langgraph")

from idle_accelerators import soon_idle
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from lc_recording import plain
from places_programs import CLASSES, OF_ONE_KIND, PROGRAMS, UNORDERED, Kit, interrupted

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

pytestmark = [
    # Both say only that a call which LangGraph documents may change.
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
    pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10"),
]

#: what differs between two plain runs
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+\d\d:\d\d)?"), "<time>"),
    (re.compile(r"'timestamp': \d+"), "'timestamp': <time>"),
    (re.compile(r", id='<id>'"), ""),  # a message may be stored just before it gets its id
    (re.compile(r"\d{32}\.0\.\d+"), "<version>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
)
_ALL_MODES = {
    "stream_mode": ["values", "updates", "messages", "custom", "debug", "checkpoints", "tasks"],
    "subgraphs": True,
}
Call = dict[str, Any]


async def _ainvoke(graph: Any, call: Call) -> list[Any]:
    return [await graph.ainvoke(**call)]


async def _astream(graph: Any, call: Call) -> list[Any]:
    return [item async for item in graph.astream(**call, **_ALL_MODES)]


async def _aevents(graph: Any, call: Call) -> list[Any]:
    return [event async for event in graph.astream_events(**call, version="v2")]


async def _aevents_v3(graph: Any, call: Call) -> list[Any]:
    return [event async for event in await graph.astream_events(**call, version="v3")]


#: by name: a way to call a program, whether that is made of coroutines, and has a checkpointer
WAYS: dict[str, tuple[Callable[[Any, Call], Any], bool, bool]] = {
    "invoke": (lambda graph, call: [graph.invoke(**call)], False, True),
    "ainvoke": (_ainvoke, True, True),
    "ainvoke of functions": (_ainvoke, False, False),
    "stream": (lambda graph, call: list(graph.stream(**call, **_ALL_MODES)), False, True),
    "astream": (_astream, True, True),
    "events": (_aevents, True, False),
    "events v3": (_aevents_v3, True, False),
}


PLACES = [
    (build, kind) for build in PROGRAMS for kind in CLASSES if OF_ONE_KIND.get(build, kind) == kind
]


@contextmanager
def _plainly(graph: Any, accelerator: Accelerator) -> Iterator[Any]:
    yield graph


@contextmanager
def _accelerated(graph: Any, accelerator: Accelerator) -> Iterator[Any]:
    yield accelerate(graph, accelerator=accelerator)


@contextmanager
def _activated(graph: Any, accelerator: Accelerator) -> Iterator[Any]:
    with activate(accelerator):
        yield graph


def run(build: Callable[[Kit], Any], kind: str, way: str, arm: Any) -> tuple[Any, ...]:
    """Make a fresh program, run it, and forget it.

    Returns:
        What it handed over or raised, the states that it left behind, and the calls by kind that
        its leaves, the meter and the scheduler have seen.
    """
    call, is_async, saves = WAYS[way]
    saver = InMemorySaver() if saves or build is interrupted else None
    kit = Kit(kind, is_async, saver)
    with Accelerator(strict=True) as accelerator:
        with arm(build(kit), accelerator) as graph, coverage() as meter:
            items = list(_handed_over(graph, kit, call))
            config = _config(kit)
            history = [] if saver is None else [*map(settled, graph.get_state_history(config))]
        assert soon_idle(accelerator)
        assert accelerator.bypassed == {}
        engines: Any = accelerator.metrics.snapshot().get("engines", {})
    gc.collect()  # what this run patched is restored before the next one
    calls = {kind: len(journal.calls) for kind, journal in kit.journals.items() if journal.calls}
    if build in OF_ONE_KIND:
        calls[OF_ONE_KIND[build]] = calls["embeddings"]  # one for each search
    metered = {row.kind: (row.scheduled, row.passed_by) for row in meter.rows()}
    steps = sum(engine["steps"] for engine in engines.values())
    return items if build not in UNORDERED else sorted(items), history, calls, metered, steps


def _handed_over(graph: Any, kit: Kit, call: Callable[[Any, Call], Any]) -> Iterator[str]:
    """Yield what a graph hands over, and what it does when it is resumed."""
    for given in [kit.given] if kit.resume is None else [kit.given, Command(resume=kit.resume)]:
        try:
            found = call(graph, {"input": given, "config": _config(kit)})
            yield from map(settled, asyncio.run(found) if asyncio.iscoroutine(found) else found)
        except Exception as error:
            yield f"raised {type(error).__name__}: {error}"


def _config(kit: Kit) -> dict[str, Any]:
    thread = {"thread_id": "thread"} if kit.saver is not None else {}
    return {"configurable": {**thread, **kit.configurable}}


def settled(value: Any) -> str:
    """Return a value as text without ids, times and versions."""
    text = plain(value)
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text


@pytest.mark.cross_product(keep=40)
@pytest.mark.parametrize("arm", [_accelerated, _activated])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("build", "kind"), PLACES, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_scheduled_program_does_what_the_plain_one_does_and_every_call_is_scheduled(
    build: Callable[[Kit], Any], kind: str, way: str, arm: Any
) -> None:
    *expected, calls, _, _ = run(build, kind, way, _plainly)
    *found, counted, metered, steps = run(build, kind, way, arm)
    assert found == expected
    assert counted == calls != {}
    assert metered == {kind: (number, 0) for kind, number in calls.items()}
    assert steps == sum(calls.values())
