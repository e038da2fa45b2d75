"""A chain under the load of concurrent users, from threads or from tasks."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rag_accel.telemetry.metrics import percentile

Shape = Literal["threads", "tasks"]
SHAPES: tuple[Shape, ...] = ("threads", "tasks")


@dataclass(frozen=True, slots=True)
class Load:
    """One run: each answer, each latency in seconds, and the wall time."""

    answers: tuple[Any, ...]
    latencies_s: tuple[float, ...]
    wall_s: float

    @property
    def throughput_rps(self) -> float:
        """Return answers per second."""
        return len(self.answers) / self.wall_s

    def percentile_ms(self, share: float) -> float:
        """Return the latency in ms that ``share`` of the requests did not exceed."""
        return 1000 * percentile(self.latencies_s, share)

    @property
    def median_ms(self) -> float:
        """Return the median latency in ms."""
        return 1000 * statistics.median(self.latencies_s)


def run_load(chain: Any, questions: Sequence[str], users: int, shape: Shape) -> Load:
    """Let ``users`` users ask the questions, each the next one as soon as the answer is there."""
    if shape == "threads":
        return _run_threads(chain, questions, users)
    return asyncio.run(_run_tasks(chain, questions, users))


def _run_threads(chain: Any, questions: Sequence[str], users: int) -> Load:
    def ask(question: str) -> tuple[Any, float]:
        started = time.perf_counter()
        return chain.invoke(question), time.perf_counter() - started

    with ThreadPoolExecutor(users) as pool:
        started = time.perf_counter()
        found = list(pool.map(ask, questions))
        wall = time.perf_counter() - started
    return Load(tuple(answer for answer, _ in found), tuple(took for _, took in found), wall)


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


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads inside the block; the demo owns this process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
