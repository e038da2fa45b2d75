"""Crowds of requests in every way, with faults, cancellations and deadlines, leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from accel_harness import DECODER, Forgetful, become_idle, opened, reply

from rag_accel import END, START, Accelerator, RagAccelError, RAGraph
from rag_accel.engine_api import EngineRequest, PrimitiveKind
from rag_accel.testing import FAKE_PROFILE, Faults

MIB = 2**20


def rss_bytes() -> int:
    """Return how much memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def rag() -> RAGraph:
    """Return a graph with everything in it: fan-out, a reducer, a loop, sync and async code."""

    async def polish(text: str) -> str:
        await asyncio.sleep(0)
        return text

    graph = RAGraph()
    graph.add_function("question", polish, inputs="input", output="question")
    graph.add_retrieval("search", query="question", top_k=2, output="found")
    graph.add_retrieval("again", query="input", top_k=1, output="found")
    graph.add_reducer("found", lambda left, right: (*left, *right))
    graph.add_generation("answer", prompt="{input}: {found}")
    graph.add_generation("check", prompt="{answer}", output="verdict")
    graph.add_edge(START, "question").add_edge("question", ["search", "again"])
    graph.add_edge(["search", "again"], "answer").add_edge("answer", "check")
    graph.add_edge("check", lambda values: "answer" if values["input"] == "" else END)
    return graph


def open_rag(faults: Faults | None = None, **options: Any) -> Any:
    return opened(
        llm=Forgetful(steps=2, faults=faults),
        embedder=Forgetful(faults=faults),
        index=Forgetful(replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.SEARCHING}))),
        **options,
    )


async def crowd(acc: Accelerator, graph: RAGraph, count: int) -> None:
    await asyncio.gather(*(acc.arun(graph, input=str(n)) for n in range(count)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_over_rounds_of_a_thousand_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONASYNCIODEBUG")
    with open_rag() as acc:
        graph = rag()
        for number in range(1, 21):
            asyncio.run(crowd(acc, graph, 1000))
            become_idle(acc)
            gc.collect()
            if number == 3:
                settled = rss_bytes()
        assert rss_bytes() <= max(settled * 1.05, settled + 20 * MIB)


# Soak -------------------------------------------------------------------------------------------


def soak(seconds: float, seed: int) -> dict[str, int]:
    """Let threads and loops run, stream, submit, cancel and abandon at random; count outcomes."""
    rng = Random(seed)
    faults = Faults(_fault)
    until = time.monotonic() + seconds
    counts: dict[str, int] = {}
    lock = threading.Lock()

    def count(outcome: str) -> None:
        with lock:
            counts[outcome] = counts.get(outcome, 0) + 1

    with (
        open_rag(faults, max_requests=40, call_threads=8) as acc,
        ThreadPoolExecutor(8) as pool,
    ):
        graph = rag()
        jobs = [pool.submit(_sync_job, acc, graph, rng.random(), until, count) for _ in range(5)]
        jobs += [pool.submit(_loop_job, acc, graph, rng.random(), until, count) for _ in range(3)]
        for job in jobs:
            job.result()
        gc.collect()
    return counts


def _fault(request: EngineRequest) -> Any:
    number = sum(request.id.encode()) % 40
    faults = {3: "raise", 7: "error", 13: LookupError("scripted")}
    if request.kind is PrimitiveKind.EMBEDDING:  # silence on a stepped engine lasts for ever
        faults[11] = "silent"
    return faults.get(number)


def _sync_job(
    acc: Accelerator, graph: RAGraph, seed: float, until: float, count: Callable[[str], None]
) -> None:
    rng = Random(seed)
    while time.monotonic() < until:
        deadline_s = rng.choice([None, None, 0.001, 0.02, 5.0])
        text = str(rng.randrange(1000))
        try:
            way = rng.randrange(4)
            if way == 0:
                acc.run(graph, deadline_s=deadline_s, input=text)
            elif way == 1:
                list(acc.stream(graph, deadline_s=deadline_s, input=text))
            elif way == 2:
                pieces = acc.stream(graph, deadline_s=deadline_s, input=text)
                next(pieces)
                if rng.random() < 0.5:
                    pieces.close()  # type: ignore[attr-defined]
            else:
                handle = acc.submit(graph, deadline_s=deadline_s, input=text)
                if rng.random() < 0.5:
                    handle.cancel()
                handle.result(60)
            count("done")
        except (RagAccelError, LookupError) as error:
            count(type(error).__name__)


def _loop_job(
    acc: Accelerator, graph: RAGraph, seed: float, until: float, count: Callable[[str], None]
) -> None:
    rng = Random(seed)

    async def one() -> None:
        deadline_s = rng.choice([None, None, 0.001, 0.02, 5.0])
        text = str(rng.randrange(1000))
        if rng.random() < 0.7:
            await acc.arun(graph, deadline_s=deadline_s, input=text)
        else:
            async for _ in acc.astream(graph, deadline_s=deadline_s, input=text):
                if rng.random() < 0.5:
                    break

    async def main() -> None:
        while time.monotonic() < until:
            tasks = [asyncio.ensure_future(one()) for _ in range(rng.randrange(1, 12))]
            await asyncio.sleep(rng.random() * 0.02)
            for task in tasks:
                if rng.random() < 0.3:
                    task.cancel()
            for task in tasks:
                try:
                    await task
                    count("done")
                except (RagAccelError, LookupError) as error:
                    count(type(error).__name__)
                except asyncio.CancelledError:
                    count("cancelled")
            if rng.random() < 0.1:
                return

    while time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(main())


@pytest.mark.parametrize(
    "seconds",
    [2.0, pytest.param(120.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
)
def test_a_soak_with_faults_cancellations_and_abandoned_streams_leaves_nothing(
    seconds: float,
) -> None:
    counts = soak(seconds, seed=int(seconds))
    assert {"done", "EngineError", "LookupError", "DeadlineError", "cancelled"} <= set(counts)


def test_a_crowd_of_streams_gets_every_piece_once() -> None:
    graph = RAGraph()
    graph.add_generation("text", prompt="{input}").add_edge(START, "text").add_edge("text", END)

    async def read(acc: Accelerator, n: int) -> None:
        pieces = [piece async for piece in acc.astream(graph, input=str(n) * 20)]
        assert "".join(pieces) == reply(str(n) * 20)

    async def main() -> None:
        await asyncio.gather(*(read(acc, n) for n in range(200)))

    with opened(llm=Forgetful(DECODER, steps=4)) as acc:
        asyncio.run(main())
