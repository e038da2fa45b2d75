"""A chain under the load of concurrent users, from threads or from tasks."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rag_accel.engines.embedding.shared_runtimes import wait_until_compiled
from rag_accel.system.processor import usable_cores
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


USERS = (1, 16, 64)
#: Questions each user asks about, and the least and most questions of a level.
PER_USER, FEWEST = 8, 128
TUNING_QUESTIONS = 64
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Level:
    """One level: both arms in the shape in which the accelerated one gains least."""

    users: int
    shape: Shape
    questions: tuple[str, ...]
    plain: Load
    accelerated: Load
    plain_threads: int


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


def measure(
    plain: Any,
    accelerated: Any,
    questions: Sequence[str],
    tell: Callable[[str], None],
    users: Sequence[int] = USERS,
) -> list[Level]:
    """Return one ``Level`` per number of users, who ask eight questions each, 128 at least.

    The plain arm runs with the number of torch threads that serves it best at that level and
    shape; the accelerated one sets its own.
    """
    for chain in (plain, accelerated):
        run_load(chain, questions[:TUNING_QUESTIONS], max(users), "threads")
    # No run has to wait for a model to be compiled; here both states would be measured mixed.
    wait_until_compiled(PATIENCE_S)
    return [_level(plain, accelerated, questions, count, tell) for count in users]


def _level(
    plain: Any, accelerated: Any, questions: Sequence[str], users: int, tell: Callable[[str], None]
) -> Level:
    asked = tuple(questions[: max(FEWEST, PER_USER * users)])
    found: list[Level] = []
    for shape in SHAPES:
        threads = _best_threads(plain, questions, users, shape)
        with torch_threads(threads):
            before = run_load(plain, asked, users, shape)
            after = run_load(accelerated, asked, users, shape)
        tell(
            f"  {users:>2} users, {shape}: plain {before.throughput_rps:6.1f}/s, "
            f"accelerated {after.throughput_rps:6.1f}/s"
        )
        found.append(Level(users, shape, asked, before, after, threads))
    return min(found, key=lambda one: one.accelerated.throughput_rps / one.plain.throughput_rps)


def _best_threads(plain: Any, questions: Sequence[str], users: int, shape: Shape) -> int:
    rates: dict[int, float] = {}
    for count in sorted({1, usable_cores()}):
        with torch_threads(count):
            load = run_load(plain, questions[:TUNING_QUESTIONS], users, shape)
        rates[count] = load.throughput_rps
    return max(rates, key=lambda count: rates[count])
