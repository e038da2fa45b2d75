"""Put a chain under the load of concurrent users, from threads or from tasks."""

from __future__ import annotations

import asyncio
import math
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["threads", "tasks"]
SHAPES: tuple[Shape, ...] = ("threads", "tasks")


@dataclass(frozen=True, slots=True)
class Load:
    """Hold one run: each answer, each latency in seconds, and the wall time."""

    answers: tuple[Any, ...]
    latencies_s: tuple[float, ...]
    wall_s: float

    @property
    def throughput_rps(self) -> float:
        """Return answers per second."""
        return len(self.answers) / self.wall_s

    def percentile_ms(self, share: float) -> float:
        """Return the latency in ms that ``share`` of the requests did not exceed."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    @property
    def median_ms(self) -> float:
        """Return the median latency in ms."""
        return 1000 * statistics.median(self.latencies_s)


def run_load(chain: Any, questions: Sequence[str], users: int, shape: Shape) -> Load:
    """Let ``users`` users ask the questions, each the next one as soon as he has an answer."""
    if shape == "threads":
        return _run_threads(chain, questions, users)
    return asyncio.run(_run_tasks(chain, questions, users))


def _run_threads(chain: Any, questions: Sequence[str], users: int) -> Load:
    answers: list[Any] = [None] * len(questions)
    latencies = [0.0] * len(questions)
    failures: list[BaseException] = []
    waiting = iter(range(len(questions)))
    lock = threading.Lock()

    def user() -> None:
        while not failures:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            started = time.perf_counter()
            try:
                answers[index] = chain.invoke(questions[index])
            except BaseException as error:
                failures.append(error)
                return
            latencies[index] = time.perf_counter() - started

    threads = [threading.Thread(target=user) for _ in range(users)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - started
    if failures:
        raise failures[0]
    return Load(tuple(answers), tuple(latencies), wall)


async def _run_tasks(chain: Any, questions: Sequence[str], users: int) -> Load:
    answers: list[Any] = [None] * len(questions)
    latencies = [0.0] * len(questions)
    waiting = iter(range(len(questions)))

    async def user() -> None:
        for index in waiting:
            started = time.perf_counter()
            answers[index] = await chain.ainvoke(questions[index])
            latencies[index] = time.perf_counter() - started

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return Load(tuple(answers), tuple(latencies), time.perf_counter() - started)
