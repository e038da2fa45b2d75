"""Run one request at a time in every arm, and write the rows of what that gave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.arms import best_torch_threads
from bench.emulated.table import DeviceTable
from bench.measure import median
from bench.paired import in_ms
from bench.research.advanced.bound import bound_s
from bench.research.advanced.ours import Ours, Spent
from bench.research.advanced.programs import hand_parallel, sequential
from bench.research.advanced.stages import Notes, Stages
from bench.research.advanced.workload import LEADING, Request, Setting, Variant
from bench.results import Row, row_of
from langchain_rag_accel.demo.load import torch_threads

SEQUENTIAL, HAND_PARALLEL, OURS = "sequential", "hand_parallel", "ours"
LANGGRAPH_ARMS = (SEQUENTIAL, HAND_PARALLEL)

_logger = logging.getLogger("bench.advanced_rag")


@dataclass(frozen=True, slots=True)
class Measured:
    """What the arms of one variant gave, request by request.

    Args:
        variant: what they ran.
        latencies_s: by arm.
        answers: by arm.
        notes: of the sequential arm.
    """

    variant: Variant
    latencies_s: Mapping[str, list[float]]
    answers: Mapping[str, list[str]]
    notes: list[Notes]

    def gain(self, arm: str) -> float:
        """Return an arm's p50 / ours."""
        return median(self.latencies_s[arm]) / median(self.latencies_s[OURS])

    def over_bound(self, table: DeviceTable) -> float:
        """Return our p50 / the bound's."""
        bounds_s = [bound_s(table, notes) for notes in self.notes]
        return median(self.latencies_s[OURS]) / median(bounds_s)

    def rows(self, table: DeviceTable) -> list[Row]:
        """Return latencies, the bound, ratios of p50s, CPU stages and equal answers."""
        workload, n = self.variant.name, len(self.notes)
        bounds_ms = [in_ms(bound_s(table, notes)) for notes in self.notes]
        above = self.over_bound(table)
        rows = [
            row_of(arm, workload, "latency_ms", [in_ms(seconds) for seconds in times])
            for arm, times in self.latencies_s.items()
        ]
        rows.append(row_of("bound", workload, "latency_ms", bounds_ms))
        rows += [
            Row(f"{arm} / ours", workload, "p50_ratio", self.gain(arm), None, n)
            for arm in LANGGRAPH_ARMS
        ]
        rows.append(Row("ours / bound", workload, "p50_ratio", above, None, n))
        for stage in self.notes[0].cpu_s:
            times_ms = [in_ms(notes.cpu_s[stage]) for notes in self.notes]
            rows.append(row_of(SEQUENTIAL, f"{workload}: {stage}", "latency_ms", times_ms))
        for arm in (HAND_PARALLEL, OURS):
            rows += same_rows(arm, workload, self.answers[SEQUENTIAL], self.answers[arm])
        return rows


class Alone:
    """Requests that run with nothing beside them.

    Args:
        setting: what all arms share.
        ours: the accelerator's arm.
        runner: gives the loop of the arm that is async.
    """

    def __init__(self, setting: Setting, ours: Ours, runner: asyncio.Runner) -> None:
        self._setting = setting
        self._ours = ours
        self._runner = runner
        self._threads = best_torch_threads(self._local_rate)
        _logger.info("the LangGraph arms run on %d torch threads", self._threads)

    def measure(self, variant: Variant, repeats: int, warm_up: int) -> Measured:
        """Run a variant ``repeats`` times in each arm; the arms take turns going first."""
        stages = Stages(self._setting)
        arms = self._arms(variant, stages)
        latencies_s: dict[str, list[float]] = {name: [] for name in arms}
        answers: dict[str, list[str]] = {name: [] for name in arms}
        notes: list[Notes] = []
        for turn in range(-warm_up, repeats):
            request = self._setting.request(turn)
            stages.notes = Notes()
            for name in _rotated(tuple(arms), turn):
                started = time.perf_counter()
                answer = arms[name](request)
                seconds = time.perf_counter() - started
                self._setting.forget(request)
                if turn >= 0:
                    latencies_s[name].append(seconds)
                    answers[name].append(answer)
            if turn >= 0:
                notes.append(stages.notes)
        found = Measured(variant, latencies_s, answers, notes)
        gains = {arm: round(found.gain(arm), 3) for arm in LANGGRAPH_ARMS}
        _logger.info("%s: p50 / ours %s", variant.name, gains)
        return found

    def count(self, requests: int) -> list[Spent]:
        """Return what requests of the leading variant cost on the accelerator."""
        spent: list[Spent] = []
        for turn in range(requests):
            request = self._setting.request(turn)
            spent.append(self._ours.answer_counted(LEADING, request))
            self._setting.forget(request)
        return spent

    def _arms(self, variant: Variant, stages: Stages) -> dict[str, Callable[[Request], str]]:
        plain = sequential(stages, variant)
        parallel = hand_parallel(Stages(self._setting), variant)

        def run_sequential(request: Request) -> str:
            with torch_threads(self._threads):
                return plain.invoke(_state(request))["answer"]

        def run_parallel(request: Request) -> str:
            with torch_threads(self._threads):
                return self._runner.run(parallel.ainvoke(_state(request)))["answer"]

        return {
            SEQUENTIAL: run_sequential,
            HAND_PARALLEL: run_parallel,
            OURS: lambda request: self._ours.answer(variant, request),
        }

    def _local_rate(self) -> float:
        """Return requests per second of the stages that compute here, one after the other."""
        stages, request = Stages(self._setting), self._setting.request(0)
        started = time.perf_counter()
        stages.upload(request.documents)
        stages.rerank(request.question, [stages.search(request.question)])
        seconds = time.perf_counter() - started
        self._setting.forget(request)
        return 1 / seconds


def spent_rows(spent: Sequence[Spent]) -> list[Row]:
    """Return what requests of the leading variant cost on the accelerator."""
    figures = {
        "scheduling_cpu_ms": [in_ms(one.scheduling_s) for one in spent],
        "cpu_ms": [in_ms(one.cpu_s) for one in spent],
        "device_ms": [in_ms(one.device_s) for one in spent],
        "scheduling_share": [one.share for one in spent],
    }
    return [row_of(OURS, LEADING.name, metric, values) for metric, values in figures.items()]


def same_rows(system: str, workload: str, wanted: Sequence[str], found: Sequence[str]) -> list[Row]:
    """Return how many answers of a system are those wanted, and how many are not."""
    n = len(wanted)
    same = sum(one == other for one, other in zip(wanted, found, strict=True))
    return [
        Row(system, workload, "identical_answers", same, None, n),
        Row(system, workload, "different_answers", n - same, None, n),
    ]


def _state(request: Request) -> dict[str, Any]:
    return {"input": request.question, "documents": request.documents}


def _rotated(names: tuple[str, ...], turn: int) -> tuple[str, ...]:
    first = turn % len(names)
    return (*names[first:], *names[:first])
