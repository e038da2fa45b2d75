"""Measure both arms at each level of concurrency, in both shapes, and keep the worse for us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_rag_accel.demo.load import SHAPES, Load, Shape, run_load
from rag_accel.engines.embedding.runtimes import wait_until_compiled
from rag_accel.machine import usable_cores

USERS = (1, 16, 64)
#: Questions each user asks about, and the least and most questions of a level.
PER_USER, FEWEST = 8, 128
TUNING_QUESTIONS = 64
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Level:
    """Hold one level: both arms in the shape in which the accelerated one gains least."""

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
    # Nobody has to wait for a model to be compiled; here both states would be measured mixed.
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
