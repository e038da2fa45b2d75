"""The programs under one user and under many, plainly and accelerated, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from bench.loads import lone_ms
from bench.local_llm.answers import Setting
from bench.measure import Pairs, alternate, median, ratios
from bench.results import Row, median_row, row_of
from bench.together.material import Asked
from bench.together.programs import Arm, Ask, Program
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import Load, run_load, torch_threads

PLAIN, OURS = "all off", "all on"


@dataclass(frozen=True, slots=True)
class Compared:
    """A program's runs, turn by turn, how many answers differ, and each user's ms in pairs."""

    gains: list[float]
    different: int
    rows: list[Row]
    lone_ms: Pairs[float]

    @property
    def gain(self) -> float:
        """Return answers a second on / off: the median over turns."""
        return median(self.gains)


def best_setting(plain: Ask, asked: Sequence[Asked], users: int) -> Setting:
    """Return the callers and torch threads at which a plain program answers soonest."""
    cores = usable_cores()
    tried = {Setting(1, cores), Setting(min(cores, users), 1), Setting(users, 1)}
    taken = {setting: _plainly(plain, setting, asked).wall_s for setting in tried}
    return min(taken, key=lambda setting: taken[setting])


def compare(
    name: str, program: Program, asked: Sequence[Sequence[Asked]], users: int, setting: Setting
) -> Compared:
    """Let both arms answer the same questions, in turns.

    Args:
        name: of the program.
        program: plainly and accelerated.
        asked: of each turn.
        users: who ask at once.
        setting: of the plain arm.
    """
    plain, fast = program
    few = Setting(min(setting.callers, users), setting.threads if users > 1 else usable_cores())
    pairs = alternate(
        lambda turn: _plainly(plain, few, asked[turn]),
        lambda turn: _load(fast, users, asked[turn]),
        len(asked),
    )
    workload = f"{name}, {users} user{'s' if users > 1 else ''}"
    different = sum(
        one != other
        for before, after in zip(pairs.plain, pairs.other, strict=True)
        for one, other in zip(before.answers, after.answers, strict=True)
    )
    total = sum(map(len, asked))
    rows = [
        *_rows(PLAIN, workload, pairs.plain),
        *_rows(OURS, workload, pairs.other),
        Row(OURS, workload, "different_answers", different, None, total),
    ]
    return Compared(_gains(pairs), different, rows, lone_ms(pairs))


def _gains(pairs: Pairs[Load]) -> list[float]:
    return ratios(pairs.map(lambda load: load.throughput_rps))


def _rows(system: str, workload: str, loads: Sequence[Load]) -> list[Row]:
    latencies = [1000 * each for load in loads for each in load.latencies_s]
    rates = [load.throughput_rps for load in loads]
    return [
        median_row(system, workload, "answers_per_s", rates),
        row_of(system, workload, "latency_ms", latencies),
    ]


def _plainly(plain: Ask, setting: Setting, asked: Sequence[Asked]) -> Load:
    with torch_threads(setting.threads):
        return _load(plain, setting.callers, asked)


def _load(ask: Ask, users: int, asked: Sequence[Asked]) -> Load:
    return run_load(Arm(ask), cast("Any", asked), users, "threads")


def warm_up(program: Program, asked: Sequence[Asked]) -> None:
    """Answer a few questions by both arms, so that models are loaded and compiled."""
    run: Callable[[Ask], Load] = partial(_load, users=len(asked), asked=asked)
    for ask in program:
        run(ask)
