"""Compare a program run in two ways: results, errors, and runs told to callbacks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from lc_recording import plain

from rag_accel import Accelerator, RAGraph
from rag_accel_adapters.langchain.plan import parts_of

_STARTS = (
    "on_chain_start",
    "on_chat_model_start",
    "on_llm_start",
    "on_retriever_start",
    "on_tool_start",
)
_OTHERS = (
    "on_chain_end",
    "on_chain_error",
    "on_llm_end",
    "on_llm_error",
    "on_llm_new_token",
    "on_retriever_end",
    "on_retriever_error",
    "on_retry",
    "on_text",
    "on_tool_end",
    "on_tool_error",
)


class Runs(BaseCallbackHandler):
    """Write down every run: what was told of it, in order, and which runs are inside it."""

    run_inline = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[UUID, list[tuple[Any, ...]]] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self.order: list[tuple[str, UUID]] = []
        #: all that was told, in order
        self.log: list[tuple[Any, ...]] = []

    def tell(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run, parent = kwargs.pop("run_id"), kwargs.pop("parent_run_id", None)
        kwargs["tags"] = sorted(kwargs.get("tags") or [])
        with self._lock:
            self.order.append((event, run))
            self._parents.setdefault(run, parent)
            assert self._parents[run] == parent, "a run changed its parent"
            told = (event, plain(args), plain(kwargs))
            self.log.append(told)
            self._told.setdefault(run, []).append(told)

    def events(self) -> list[tuple[Any, ...]]:
        """Return all that was told, in whatever order it came."""
        with self._lock:
            return [one for told in self._told.values() for one in told]

    def forest(self) -> list[str]:
        """Return every outermost run with all inside it, in an order that follows from them."""
        with self._lock:
            return sorted(self._tree(run) for run, up in self._parents.items() if up is None)

    def _tree(self, run: UUID) -> str:
        inside = sorted(self._tree(child) for child, up in self._parents.items() if up == run)
        return repr((self._told[run], inside))

    def open(self) -> list[UUID]:
        """Return the runs that have not ended exactly once."""
        ends = ("_end", "_error")
        with self._lock:
            return [
                run
                for run, told in self._told.items()
                if sum(event[0].endswith(ends) for event in told) != 1
            ]


def _teller(event: str) -> Callable[..., None]:
    def told(self: Runs, *args: Any, **kwargs: Any) -> None:
        self.tell(event, args, kwargs)

    return told


for _event in (*_STARTS, *_OTHERS):
    setattr(Runs, _event, _teller(_event))


def compare_leaves(program: Any, of_program: Runs, of_plan: Runs, is_ordered: bool = True) -> None:
    """Compare what a program and its plan told, but for runs of the program's own composites.

    In programs without branches the order is the same, too, unless a part itself makes several
    calls at once (``is_ordered``).
    """
    composites = [part for part in parts_of(program).walk() if part.children]
    told, others = Counter(of_plan.log), Counter(of_program.log)
    assert told <= others, list((told - others).elements())
    others -= told
    assert sorted(event for event, *_ in others.elements()) == sorted(
        ["on_chain_start", "on_chain_end"] * len(composites)
    )
    if is_ordered and all(part.kind == "sequence" for part in composites):
        left = Counter(of_plan.log)
        assert of_plan.log == [event for event in of_program.log if _take(left, event)]


def _take(left: Counter[tuple[Any, ...]], event: tuple[Any, ...]) -> bool:
    left[event] -= 1
    return left[event] >= 0


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go on until something is so; fail if it does not come to that."""
    async with asyncio.timeout(10.0):
        for _ in count():
            if is_so():
                return
            await asyncio.sleep(0.001)


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def _atransform(program: Any, given: list[Any], config: Any) -> list[Any]:
    async def inputs() -> AsyncIterator[Any]:
        yield given[0]

    return await _all(program.atransform(inputs(), config))


#: by name, a way to call a program with the first of some inputs, or with all of them
BLOCKING: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    "invoke": lambda program, given, config: program.invoke(given[0], config),
    "stream": lambda program, given, config: list(program.stream(given[0], config)),
    "transform": lambda program, given, config: list(program.transform(iter(given[:1]), config)),
    "batch": lambda program, given, config: program.batch(given, config),
    "batch_as_completed": lambda program, given, config: sorted(
        program.batch_as_completed(given, config)
    ),
}
WAYS: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    **BLOCKING,
    "ainvoke": lambda program, given, config: program.ainvoke(given[0], config),
    "astream": lambda program, given, config: _all(program.astream(given[0], config)),
    "atransform": _atransform,
    "abatch": lambda program, given, config: program.abatch(given, config),
    "astream_events": lambda program, given, config: _by_run(
        program.astream_events(given[0], config, version="v2")
    ),
}


async def _by_run(events: Any) -> list[Any]:
    """Return the events of each run in order, and the runs in an order that follows from them."""
    runs: dict[str, list[str]] = {}
    told = await _all(events)
    names = {event["run_id"]: event["name"] for event in told}
    for event in told:
        run, above = event.pop("run_id"), [names.get(one, "?") for one in event.pop("parent_ids")]
        runs.setdefault(run, []).append(plain((above, {**event, "tags": sorted(event["tags"])})))
    return sorted(runs.values())


async def come(way: str, program: Any, given: list[Any], config: Any) -> tuple[str, Any]:
    """Return what a way comes to; one that blocks does so in a thread that runs no loop."""
    if way in BLOCKING:
        return await outcome(asyncio.to_thread, BLOCKING[way], program, given, config)
    return await outcome(WAYS[way], program, given, config)


async def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """Return what a call, blocking or not, came to: its result, or its error."""
    try:
        result = call(*args, **kwargs)
        result = await result if isinstance(result, Awaitable) else result
    except Exception as error:
        return "raised", error
    return "returned", result


def calls_of(plan: RAGraph, accelerator: Accelerator) -> list[Callable[..., Any]]:
    """Return a plan's runs, as ``invoke`` and ``ainvoke`` of its program."""
    return [
        lambda given, config: accelerator.run(plan, input=given, config=config),
        lambda given, config: accelerator.arun(plan, input=given, config=config),
    ]


async def recorded(
    call: Callable[..., Any], acall: Callable[..., Any], way: str, given: Any, **options: Any
) -> tuple[Runs, tuple[str, Any]]:
    """Return what the call of a way told, and what it came to."""
    runs = Runs()
    return runs, await outcome(call if way == "run" else acall, given, config_with(runs, **options))


def config_with(recorder: BaseCallbackHandler, **others: Any) -> dict[str, Any]:
    """Return a config with everything a user may put in it."""
    return {
        "callbacks": [recorder],
        "tags": ["b-tag", "a-tag"],
        "metadata": {"user": "someone"},
        "run_name": "my run",
        "configurable": {"visible": 1},
        **others,
    }
