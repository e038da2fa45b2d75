"""Answers of concurrent users and of one, in tokens per second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from bench.arms import thread_candidates
from bench.loads import counted
from bench.local_llm.chains import Chain, PlainModel
from bench.local_llm.prompts import Asked, Prompts
from bench.measure import Pairs, estimate, ratios, rotate
from bench.results import Row, median_row, row_of
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import Load, run_load, torch_threads

PLAIN, BATCH, OURS = "plain", "plain, batch", "accelerated"
_logger = logging.getLogger("bench.serving")

Arm = Callable[[Sequence[Asked]], Load]
"""Answers prompts, as many users at once as the arm is made for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a plain arm is run: how many callers at once, on how many torch threads."""

    callers: int
    threads: int

    def __str__(self) -> str:
        return f"{counted(self.callers, 'caller')}, {counted(self.threads, 'torch thread')}"


def called(chain: Chain, setting: Setting) -> Arm:
    """Return the arm whose callers each invoke, the next prompt once they have an answer."""

    def answer(asked: Sequence[Asked]) -> Load:
        with torch_threads(setting.threads):
            return run_load(chain, cast("Any", asked), setting.callers, "threads")

    return answer


def batched(chain: Chain, threads: int) -> Arm:
    """Return the arm of one call with all prompts; each waits for the last one."""

    def answer(asked: Sequence[Asked]) -> Load:
        with torch_threads(threads):
            started = time.perf_counter()
            answers = chain.batch(list(asked))
            wall_s = time.perf_counter() - started
        return Load(tuple(answers), (wall_s,) * len(answers), wall_s)

    return answer


def ours(chain: Chain, users: int) -> Arm:
    """Return the arm as it is by itself: it sets its threads."""
    return lambda asked: run_load(chain, cast("Any", asked), users, "threads")


def most_threads() -> int:
    """Return as many torch threads as there are cores."""
    return usable_cores()


def best_setting(chain: Chain, asked: Sequence[Asked], callers: Sequence[int]) -> Setting:
    """Return the callers and threads at which a plain chain answers soonest.

    Settings that leave cores idle which more callers could use are not tried.
    """
    cores = usable_cores()
    settings = [Setting(each, threads) for each in callers for threads in thread_candidates(cores)]
    filled = min(cores, max(callers))
    tried = [setting for setting in settings if setting.callers * setting.threads >= filled]
    taken = {setting: called(chain, setting)(asked).wall_s for setting in tried}
    for setting, wall_s in taken.items():
        _logger.info("plain, %s: %.1f s", setting, wall_s)
    return min(taken, key=lambda setting: taken[setting])


def setting_rows(workload: str, setting: Setting) -> list[Row]:
    """Return the rows that tell a plain arm's setting."""
    return [
        Row(PLAIN, workload, "callers", setting.callers, None, 1),
        Row(PLAIN, workload, "torch_threads", setting.threads, None, 1),
    ]


def best_batch_threads(model: PlainModel, asked: Sequence[Asked], tokens: int) -> int:
    """Return the number of torch threads at which the batch is answered soonest."""
    candidates = thread_candidates(usable_cores())
    chain = model.chain(tokens)
    taken = {threads: batched(chain, threads)(asked).wall_s for threads in candidates}
    return min(candidates, key=lambda threads: taken[threads])


@dataclass(frozen=True, slots=True)
class Compared:
    """What several arms answered to the same prompts, turn by turn.

    Args:
        workload: how rows name it.
        loads: of each arm, one a turn.
        prompts: counts tokens.
        reference: the arm whose answers the others' are compared with.
    """

    workload: str
    loads: Mapping[str, Sequence[Load]]
    prompts: Prompts
    reference: str = PLAIN

    def gain(self, other: str) -> float:
        """Return our tokens per second / another arm's: the median over turns."""
        pairs = Pairs(tuple(self.loads[other]), tuple(self.loads[OURS]))
        return estimate(ratios(pairs.map(self._tokens_per_s)))

    def rows(self) -> list[Row]:
        """Return each arm's rate, latencies, length of answers, and equal answers."""
        return [row for name in self.loads for row in self._rows_of(name)]

    def _rows_of(self, name: str) -> list[Row]:
        loads, row = self.loads[name], partial(row_of, name, self.workload)
        answers = [answer for load in loads for answer in load.answers]
        latencies = [1000 * each for load in loads for each in load.latencies_s]
        wanted = [answer for load in self.loads[self.reference] for answer in load.answers]
        same = sum(one == other for one, other in zip(wanted, answers, strict=True))
        rates = [self._tokens_per_s(load) for load in loads]
        found = [
            median_row(name, self.workload, "tokens_per_s", rates),
            row("latency_ms", latencies),
            median_row(
                name, self.workload, "tokens_per_answer", [*map(self.prompts.count, answers)]
            ),
        ]
        if name != self.reference:
            # Not demanded: in bfloat16 greedy texts depend on what else is in a forward.
            metric = f"answers_equal_to_{self.reference}"
            found.append(Row(name, self.workload, metric, same, None, len(answers)))
        return found

    def _tokens_per_s(self, load: Load) -> float:
        return sum(map(self.prompts.count, load.answers)) / load.wall_s


def compare(
    workload: str,
    arms: Mapping[str, Arm],
    prompts: Prompts,
    lengths: Sequence[int],
    turns: int,
    reference: str = PLAIN,
) -> Compared:
    """Let the arms take turns; all answer the same prompts, each turn others."""
    asked = [prompts.asked(lengths) for _ in range(turns)]
    found = rotate(
        {name: lambda turn, arm=arm: arm(asked[turn]) for name, arm in arms.items()}, turns
    )
    for name, loads in found.items():
        _logger.info("%s, %s: %s s", workload, name, [round(load.wall_s, 2) for load in loads])
    return Compared(workload, found, prompts, reference)
