"""Time rounds of users who all ask at the same moment, plain and accelerated in turn.

A round is one request of each user, started together on one loop. The plain arm takes turns with
``activate()`` first and with ``accelerate()`` after, each arm on a program of its own. Every round
asks the same questions, and answers that differ within a pair are counted.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable

from bench.loads import counted
from bench.measure import Pairs, alternate_async
from bench.paired import PairedTimes, in_ms
from bench.results import Row, row_of
from bench.unbatched.conversation import conversational_rag
from bench.unbatched.graphs import (
    agentic_rag,
    corrective_rag,
    map_reduce,
    plan_and_execute,
    self_adaptive_rag,
)
from bench.unbatched.program import Program, questions
from langchain_rag_accel import accelerate, activate
from rag_accel.accelerator import Accelerator

BUILDERS: tuple[Callable[[], Program], ...] = (
    *(agentic_rag, corrective_rag, self_adaptive_rag, map_reduce, plan_and_execute),
    conversational_rag,
)
_logger = logging.getLogger("bench.rounds")


@dataclass(frozen=True, slots=True)
class Way:
    """The rounds of a program accelerated in one way, beside those of the plain program.

    Args:
        name: ``activate`` or ``accelerate``.
        wall: times of whole rounds.
        cpu: processor time of all threads in them, which other processes disturb less.
        num_different: answers that are not the plain ones.
        num_answers: answers compared.
    """

    name: str
    wall: PairedTimes
    cpu: PairedTimes
    num_different: int = 0
    num_answers: int = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one program.

    Args:
        workload: how results name it.
        leaf_calls: leaf calls of one round.
        ways: to accelerate it.
    """

    workload: str
    leaf_calls: int
    ways: tuple[Way, ...]

    @property
    def ratio(self) -> float:
        """Return accelerated / plain wall time: the median over pairs, the worse of both ways."""
        return max(way.wall.ratio for way in self.ways)

    @property
    def leaf_ms(self) -> float:
        """Return the wall time a leaf call costs: the median over pairs, the worse of both ways."""
        return max(way.wall.extra_each_ms(self.leaf_calls) for way in self.ways)

    def rows(self) -> list[Row]:
        """Return the times of all arms, and ratios, leaf calls' costs and answers of both ways."""
        return [
            Row("plain", self.workload, "leaf_calls", self.leaf_calls, None, 1),
            *self._time_rows("wall_ms", [way.wall.times_ms for way in self.ways]),
            *self._time_rows("cpu_ms", [way.cpu.times_ms for way in self.ways]),
            *(row for way in self.ways for row in self._cost_rows(way)),
        ]

    def _time_rows(self, metric: str, times: Sequence[Pairs[float]]) -> list[Row]:
        plain = [one_ms for pairs in times for one_ms in pairs.plain]
        return [
            row_of("plain", self.workload, metric, plain),
            *(
                row_of(way.name, self.workload, metric, pairs.other)
                for way, pairs in zip(self.ways, times, strict=True)
            ),
        ]

    def _cost_rows(self, way: Way) -> list[Row]:
        ratio, cost = f"{way.name} / plain", f"{way.name} - plain"
        figures = [
            (ratio, "wall_ratio", way.wall.ratio),
            (ratio, "cpu_ratio", way.cpu.ratio),
            (cost, "leaf_call_ms", way.wall.extra_ms / self.leaf_calls),
        ]
        pairs, metric = len(way.wall.times_ms.other), "different_answers"
        return [
            *(
                Row(system, self.workload, metric, value, None, pairs)
                for system, metric, value in figures
            ),
            Row(way.name, self.workload, metric, way.num_different, None, way.num_answers),
        ]


def time_rounds(
    build: Callable[[], Program], accelerator: Accelerator, users: int, pairs: int, warm_up: int
) -> Rounds:
    """Time a program: ``pairs`` rounds of each arm, after ``warm_up`` that do not count."""
    plain, activated, accelerated = build(), build(), build()
    asked = questions(users)
    workload = f"{plain.name}, {counted(users, 'user')}"
    plain_arm = _Arm(plain, plain.runnable, asked)

    def measure(name: str, arm: _Arm) -> Way:
        # One loop for both arms, as in a server; its default executor comes and goes with it.
        found = asyncio.run(alternate_async(plain_arm.play, arm.play, pairs, warm_up))
        wall, cpu = (found.map(lambda one: one.wall_ms), found.map(lambda one: one.cpu_ms))
        return Way(
            *(name, PairedTimes(workload, wall), PairedTimes(workload, cpu)),
            *(_num_different(found), pairs * users),
        )

    leaf_calls = _leaf_calls(plain_arm)
    inside = _Arm(activated, activated.runnable, asked, lambda: activate(accelerator))
    first = measure("activate", inside)
    # Made only now: while it lives, its classes are patched for plain calls as well.
    fast = accelerate(accelerated.runnable, accelerator=accelerator)
    second = measure("accelerate", _Arm(accelerated, fast, asked))
    found = Rounds(workload, leaf_calls, (first, second))
    _logger.info(
        "%s: x %.3f, %+.3f ms a leaf call, processor time x %.3f",
        *(workload, found.ratio, found.leaf_ms, max(way.cpu.ratio for way in found.ways)),
    )
    return found


@dataclass(frozen=True, slots=True)
class _Round:
    wall_ms: float
    cpu_ms: float
    answers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Arm:
    program: Program
    runnable: Runnable[Any, Any]
    questions: Sequence[str]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    async def play(self, turn: int) -> _Round:
        """Time one round; entering and leaving ``around`` is not timed."""
        # What the round before left behind is nobody's cost.
        gc.collect()
        with self.around():
            cpu_s, started = time.process_time(), time.perf_counter()
            answers = await asyncio.gather(
                *(self.program.ask(self.runnable, question) for question in self.questions)
            )
            wall_ms = in_ms(time.perf_counter() - started)
            return _Round(wall_ms, in_ms(time.process_time() - cpu_s), tuple(answers))


def _leaf_calls(arm: _Arm) -> int:
    """Return how many leaf calls one round makes."""
    before = arm.program.calls.total
    asyncio.run(arm.play(0))
    return arm.program.calls.total - before


def _num_different(rounds: Pairs[_Round]) -> int:
    return sum(
        found != wanted
        for plain, other in zip(rounds.plain, rounds.other, strict=True)
        for wanted, found in zip(plain.answers, other.answers, strict=True)
    )
