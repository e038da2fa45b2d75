"""Wherever a leaf stands in a LangGraph program, its calls are scheduled and nothing else changes.

Each case is a program with its leaf in one place, a kind of leaf, and a way to call the program.
The leaves count their own calls: a meter that errs, or a scheduler that never hears of a call, is
found whatever it says itself.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import pytest

pytest.importorskip("langgraph")

from idle_accelerators import soon_idle
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from lc_recording import plain
from places_kit import Kit, Program
from places_leaves import METERED, Tally, kind_of_engine
from places_programs import PROGRAMS

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

pytestmark = [
    # Both say only that a call which LangGraph documents may change.
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
    pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10"),
]

Arm = Literal["plain", "accelerate", "activate"]
Call = dict[str, Any]

_MODES = ("values", "updates", "messages", "custom", "debug", "checkpoints", "tasks")
_SAVED = ("debug", "checkpoints", "tasks", "all", "history")
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+\d\d:\d\d)?"), "<time>"),
    (re.compile(r"'timestamp': \d+"), "'timestamp': <time>"),
    (re.compile(r", id='<id>'"), ""),  # a message may be stored just before it gets its id
    (re.compile(r"\d{32}\.0\.\d+"), "<version>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Name one way to call a program.

    Args:
        name: stands in the tests' ids.
        call: calls it and returns, or gives when awaited, the list of all it handed over.
        is_async: whether ``call`` is to be awaited.
        coroutines: whether the program is to be made of coroutines.
        saving: whether what is handed over needs a checkpointer.
    """

    name: str
    call: Callable[[Any, Call], Any]
    is_async: bool = False
    coroutines: bool = False
    saving: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what one run did.

    Args:
        items: what it handed over, or the error it ended with, in a form in which runs compare.
        history: the states it left behind, where it has a checkpointer.
        calls: the leaf calls that the leaves counted, by kind.
        scheduled: those that the scheduler saw, by kind.
        metered: those that the meter says were queued or admitted, by kind.
        passed_by: those that the meter says the scheduler did not see.
    """

    items: tuple[str, ...]
    history: tuple[str, ...]
    calls: dict[str, int]
    scheduled: dict[str, int]
    metered: dict[str, int]
    passed_by: int


def run(program: Program, kind: str, entry: Entry, arm: Arm) -> Outcome:
    """Make a fresh program, run it, and forget it."""
    tally = Tally(program.error, program.once)
    saver = InMemorySaver() if entry.saving or program.saving else None
    kit = Kit(kind, tally, entry.coroutines, saver)
    with Accelerator(strict=True) as accelerator:
        with _prepared(program.build(kit), accelerator, arm) as graph, coverage() as meter:
            items = _called(graph, kit, entry)
            history = _history(graph, kit)
        rows = meter.rows()
        assert soon_idle(accelerator)
        assert accelerator.bypassed == {}
        engines = accelerator.metrics.snapshot().get("engines", {})
    if arm == "accelerate":
        del graph
        gc.collect()  # what this run patched is restored before the next one
    return Outcome(
        items=tuple(items if program.is_ordered else sorted(items)),
        history=tuple(history),
        calls={METERED[name]: number for name, number in tally.total().items()},
        scheduled=_by_kind(engines),
        metered={row.kind: row.scheduled for row in rows if row.scheduled},
        passed_by=sum(row.passed_by for row in rows),
    )


@contextmanager
def _prepared(graph: Any, accelerator: Accelerator, arm: Arm) -> Iterator[Any]:
    block = activate(accelerator) if arm == "activate" else nullcontext()
    with block:
        yield accelerate(graph, accelerator=accelerator) if arm == "accelerate" else graph


def _called(graph: Any, kit: Kit, entry: Entry) -> list[str]:
    """Return what a graph hands over, and what it does when it is resumed."""
    items: list[str] = []
    for given in [kit.given] if kit.resume is None else [kit.given, Command(resume=kit.resume)]:
        try:
            made = entry.call(graph, {"input": given, "config": _config(kit)})
            items += map(settled, asyncio.run(made) if entry.is_async else made)
        except Exception as error:
            items.append(f"raised {type(error).__name__}: {error}")
    return items


def _config(kit: Kit) -> dict[str, Any]:
    thread = {"thread_id": "thread"} if kit.saver is not None else {}
    inside = {**thread, **kit.configurable}
    return {"configurable": inside} if inside else {}


def _history(graph: Any, kit: Kit) -> list[str]:
    return [] if kit.saver is None else list(map(settled, graph.get_state_history(_config(kit))))


def settled(value: Any) -> str:
    """Return a value as text without what differs between two plain runs: ids, times, versions."""
    text = plain(value)
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text


def _by_kind(engines: Any) -> dict[str, int]:
    """Return how many calls each kind's engines ran."""
    found: Counter[str] = Counter()
    for name, cells in engines.items():
        kind = kind_of_engine(name)
        found[METERED.get(kind, kind)] += cells["steps"]
    return {kind: number for kind, number in found.items() if number}


# Ways to call a program ----------------------------------------------------------------------


def _invoke(graph: Any, call: Call) -> list[Any]:
    return [graph.invoke(**call)]


async def _ainvoke(graph: Any, call: Call) -> list[Any]:
    return [await graph.ainvoke(**call)]


def _stream(**options: Any) -> Callable[[Any, Call], list[Any]]:
    return lambda graph, call: list(graph.stream(**call, **options))


def _astream(**options: Any) -> Callable[[Any, Call], Awaitable[list[Any]]]:
    async def streamed(graph: Any, call: Call) -> list[Any]:
        return [item async for item in graph.astream(**call, **options)]

    return streamed


async def _aevents(graph: Any, call: Call) -> list[Any]:
    return [event async for event in graph.astream_events(**call, version="v2")]


def _events_v3(graph: Any, call: Call) -> list[Any]:
    return list(graph.stream_events(**call, version="v3"))


async def _aevents_v3(graph: Any, call: Call) -> list[Any]:
    return [event async for event in await graph.astream_events(**call, version="v3")]


def _entries() -> Iterator[Entry]:
    yield Entry("invoke", _invoke)
    yield Entry("ainvoke", _ainvoke, is_async=True, coroutines=True)
    yield Entry("ainvoke_of_functions", _ainvoke, is_async=True)
    yield Entry("invoke_history", _invoke, saving=True)
    yield Entry("ainvoke_history", _ainvoke, is_async=True, coroutines=True, saving=True)
    options: dict[str, Call] = {mode: {"stream_mode": mode} for mode in _MODES}
    options["all"] = {"stream_mode": list(_MODES), "subgraphs": True}
    for name, given in options.items():
        saving = name in _SAVED
        yield Entry(f"stream_{name}", _stream(**given), saving=saving)
        yield Entry(
            f"astream_{name}", _astream(**given), is_async=True, coroutines=True, saving=saving
        )
    yield Entry("astream_events_v2", _aevents, is_async=True, coroutines=True)
    yield Entry("stream_events_v3", _events_v3)
    yield Entry("astream_events_v3", _aevents_v3, is_async=True, coroutines=True)


ENTRIES = tuple(_entries())


# Every program in every way ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """Name a program, the kind of its leaf, and a way to call it."""

    program: Program
    kind: str
    entry: Entry

    def __str__(self) -> str:
        return f"{self.program.name}-{self.kind}-{self.entry.name}"


CASES = [
    Case(program, kind, entry)
    for program in PROGRAMS
    for kind in program.kinds
    for entry in ENTRIES
]


@lru_cache(maxsize=256)
def _plain(case: Case) -> Outcome:
    return run(case.program, case.kind, case.entry, "plain")


@pytest.mark.cross_product(keep=40)
@pytest.mark.parametrize("arm", ["accelerate", "activate"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_scheduled_program_does_what_the_plain_one_does_and_every_call_is_scheduled(
    case: Case, arm: Arm
) -> None:
    plain, found = _plain(case), run(case.program, case.kind, case.entry, arm)
    assert (found.items, found.history) == (plain.items, plain.history)
    assert found.scheduled == found.metered == found.calls == plain.calls
    assert found.passed_by == 0


@pytest.mark.parametrize("entry", ENTRIES[:2], ids=lambda entry: entry.name)
def test_a_store_that_embeds_in_threads_without_a_context_is_scheduled(entry: Entry) -> None:
    (program,) = (one for one in PROGRAMS if one.name == "graph_store")
    found = run(program, "embeddings", entry, "accelerate")
    assert found.scheduled == found.calls != {}
