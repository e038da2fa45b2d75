"""Measure what the skeleton of a LangGraph program gives to depth-aware order.

One node asks for many vectors; beside it a subgraph of four steps asks for one vector and then a
model, step by step. All vectors come from one engine, which takes at most 8 texts a step. Arms,
which take turns:

- plain LangGraph, one call: the wide node asks for its 96 texts in one call; the engine's worker
  serves calls in the order in which they come;
- plain LangGraph, calls of 8: its author asks for 8 texts at a time, one call after another, so
  that the subgraph's calls come in between. Nothing is lost by it;
- skeleton off: accelerated, a call for each text, all at once. All calls of a run have the same,
  unknown depth and start as they came: the order is lost;
- skeleton on: the same program, accelerated; the scheduler knows that the subgraph's calls have the
  longer way to go and starts them first;
- skeleton off again: what two equal arms differ by.

Engine and model sleep as a script says (a step 5 ms and 2 ms a text; an answer 60 ms), so this
shows what order is worth there, not what a model of yours gains. Every vector of every run must be
the one that plain LangGraph got.

Ratios:
    langgraph_depth_vs_plain: against plain LangGraph, the faster of one call of 96 texts and calls
        of 8: latency of one run with the skeleton / plain, one user; median over turns.
    langgraph_depth_vs_plain_4: against plain LangGraph, the faster of one call of 96 texts and
        calls of 8: mean latency of the runs of four users at once with the skeleton / plain; median
        over turns.
    langgraph_depth_latency: against ours with the option use_skeleton off: latency of one run with
        the skeleton / without, one user; median over turns.
    langgraph_depth_latency_4: against ours with the option use_skeleton off: mean latency of the
        runs of four users at once with the skeleton / without; median over turns.
    langgraph_depth_noise: against itself: latency of one run without the skeleton again / without,
        one user; median over turns.
    one_user: against plain LangGraph, whose wide node asks in one call: latency of one user's run
        with the skeleton / plain (lower is better; accepted: at most 1.03); median over turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.depth_program import Program, Queued, Run, Scheduled, Sizes
from bench.garbage import little_garbage
from bench.loads import counted
from bench.measure import Pairs, median, ratios, rotate_async
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator

ONE_CALL = "plain LangGraph, one call"
OFF, AGAIN, ON = "skeleton off", "skeleton off again", "skeleton on"
QUICK = Sizes(turns=20)
FULL = Sizes(turns=100)

_logger = logging.getLogger("bench.langgraph_depth")


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    with _programs(chosen) as programs, little_garbage():
        one, four = asyncio.run(_measure(programs, chosen.turns))
    times = (tuple(in_ms(run.mean_s) for run in one[name]) for name in (ONE_CALL, ON))
    more, alone = one_user({"LangGraph, 1 user": Pairs(*times)})
    rows = [*_rows(one, 1), *_rows(four, 4), *more]
    found = {
        "langgraph_depth_vs_plain": _against(one, _best_plain(one)),
        "langgraph_depth_vs_plain_4": _against(four, _best_plain(four)),
        "langgraph_depth_latency": _against(one, OFF),
        "langgraph_depth_latency_4": _against(four, OFF),
        "langgraph_depth_noise": median(_ratios(one, AGAIN, OFF)),
        **alone,
    }
    _logger.info("%s", found)
    wrong = too_many(rows, "different_answers")
    return SuiteResult(
        *("langgraph_depth", tuple(rows), found),
        scripted=True,
        sizes=sizes_of(chosen),
        wrong=wrong,
    )


@contextmanager
def _programs(sizes: Sizes) -> Iterator[dict[str, Program]]:
    with (
        closing(Queued(sizes, sizes.wide)) as whole,
        closing(Queued(sizes, sizes.batch)) as parts,
        bench_accelerator(use_skeleton=False) as blind,
        bench_accelerator(use_skeleton=False) as again,
        bench_accelerator(use_skeleton=True) as knowing,
    ):
        yield {
            ONE_CALL: Program(whole, sizes),
            f"plain LangGraph, calls of {sizes.batch}": Program(parts, sizes),
            OFF: _accelerated(blind, sizes),
            AGAIN: _accelerated(again, sizes),
            ON: _accelerated(knowing, sizes),
        }


def _accelerated(accelerator: Accelerator, sizes: Sizes) -> Program:
    make = partial(accelerate, accelerator=accelerator)
    return Program(Scheduled(accelerator, sizes), sizes, make)


Runs = Mapping[str, Sequence[Run]]


async def _measure(programs: Mapping[str, Program], turns: int) -> tuple[Runs, Runs]:
    """Return the runs of every arm with one user and, but for the noise, with four."""

    async def runs(users: int, names: Sequence[str]) -> Runs:
        arms = {name: lambda _, name=name: programs[name].run(users) for name in names}
        return await rotate_async(arms, turns, warm_up=1)

    names = list(programs)
    return await runs(1, names), await runs(4, [name for name in names if name != AGAIN])


def _ratios(runs: Runs, arm: str, plain: str) -> list[float]:
    times = [tuple(run.mean_s for run in runs[name]) for name in (plain, arm)]
    return ratios(Pairs(*times))


def _against(runs: Runs, plain: str) -> float:
    return median(_ratios(runs, ON, plain))


def _best_plain(runs: Runs) -> str:
    plain = [name for name in runs if name.startswith("plain")]
    return min(plain, key=lambda name: median([run.mean_s for run in runs[name]]))


def _rows(runs: Runs, users: int) -> list[Row]:
    workload = counted(users, "user")
    rows = [
        row_of(name, workload, "latency_ms", [in_ms(run.mean_s) for run in found])
        for name, found in runs.items()
    ]
    rows += [
        median_row(f"{ON} / {name}", workload, "latency_ratio", _ratios(runs, ON, name))
        for name in runs
        if name not in (ON, AGAIN)
    ]
    if AGAIN in runs:
        noise = _ratios(runs, AGAIN, OFF)
        rows.append(median_row(f"{AGAIN} / off", workload, "latency_ratio", noise))
    return [*rows, *_answer_rows(runs, workload)]


def _answer_rows(runs: Runs, workload: str) -> list[Row]:
    """Count, run by run, the users whose vectors are not those of plain LangGraph."""
    wanted = runs[ONE_CALL]
    rows: list[Row] = []
    for name, found in runs.items():
        pairs = [
            pair
            for one, other in zip(wanted, found, strict=True)
            for pair in zip(one.answers, other.answers, strict=True)
        ]
        different = sum(plain != other for plain, other in pairs)
        rows.append(Row(name, workload, "different_answers", different, None, len(pairs)))
    return rows
