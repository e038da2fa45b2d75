"""Measure the demo's chain under load: retrieve with MiniLM, join, answer with a reader.

The chain is an ordinary LangChain chain over a FAISS store; the load is 1, 16 or 64 users who ask
the next question as soon as they have an answer, in two shapes: ``invoke`` from threads and
``ainvoke`` from tasks of one loop. Arms take turns run by run over the same distinct questions;
single-flight is off and nothing is cached. At each level and shape the plain arm runs with the
number of torch threads that serves it best there, the accelerated one as the process is by itself.
Of the two shapes the worse for us counts.

The reader is a cheap stand-in for a language model; ``reader_share`` is its share of the plain
chain's time with one user, and above 0.3 the figures would say more about it than about us. So
the last level is run once more with a reader that first waits 500 ms, as for a remote model, with
``time.sleep`` in a thread or ``asyncio.sleep`` on the loop; what is gained there is what a chain
with such a model gains.

Every answer must be the plain one's, but where documents have scores as close as 1e-5.

Ratios:
    demo_throughput_64: against the plain chain (LangChain, torch, one text a call) at its best
        torch threads: answers/s accelerated / plain with 64 users; median over pairs of runs, the
        lower of both shapes.
    demo_p99_64: against the plain chain (LangChain, torch, one text a call) at its best torch
        threads: 99th percentile of a request's latency accelerated / plain with 64 users, each
        within a run; median over pairs of runs, the higher of both shapes.
    demo_p99_16: against the plain chain (LangChain, torch, one text a call) at its best torch
        threads: 99th percentile of a request's latency accelerated / plain with 16 users, each over
        the requests of all runs; the higher of both shapes.
    demo_p99_1: against the plain chain (LangChain, torch, one text a call) at its best torch
        threads: 99th percentile of one user's latency accelerated / plain, each over the requests
        of all runs; the higher of both shapes.
    demo_model_call_throughput_64: against the plain chain with a model call of 500 ms, at its best
        torch threads: answers/s accelerated / plain with 64 users; median over pairs of runs, the
        lower of both shapes.
    demo_model_call_p99_64: against the plain chain with a model call of 500 ms, at its best torch
        threads: 99th percentile of a request's latency accelerated / plain with 64 users, each
        within a run; median over pairs of runs, the higher of both shapes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from bench.answers import too_many
from bench.arms import at_threads, bench_accelerator, best_torch_threads
from bench.loads import (
    batch_rows,
    counted,
    load_rows,
    p99_ratio,
    pooled_p99_ratio,
    ratio_rows,
    throughput_ratio,
)
from bench.measure import Pairs, alternate
from bench.results import Row, SuiteResult, sizes_of
from langchain_rag_accel import accelerate
from langchain_rag_accel.chat_models import ExtractiveChatModel
from langchain_rag_accel.demo.chain import build_chain
from langchain_rag_accel.demo.compare import Comparison, compare
from langchain_rag_accel.demo.levels import torch_threads
from langchain_rag_accel.demo.load import SHAPES, Load, Shape, run_load
from langchain_rag_accel.demo.material import Material, default_cache, prepare
from rag_accel.accelerator import Accelerator

MAX_READER_SHARE = 0.3

_CALLS: dict[Shape, str] = {"threads": "invoke from threads", "tasks": "ainvoke from tasks"}
_logger = logging.getLogger("bench.demo")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        users: numbers of concurrent users, rising; of all but the last only the tails are ratios.
        questions: distinct questions of one run.
        tuning_questions: questions of a run that looks for the best number of torch threads.
        repeats: pairs of runs.
        model_call_s: how long the model call of the last level takes.
        model_call_repeats: pairs of runs with it.
    """

    users: tuple[int, ...]
    questions: int
    tuning_questions: int
    repeats: int
    model_call_s: float = 0.5
    model_call_repeats: int = 2


QUICK = Sizes((1, 16, 64), 384, 64, 3)
FULL = Sizes((1, 16, 64), 512, 128, 9, model_call_repeats=9)
#: Most questions a user asks in one run: with one user, all would take most of the time.
PER_USER = 128


class TimedReader(ExtractiveChatModel):
    """Answer as the demo's reader does, and add up the seconds that takes; for one user only."""

    _spent_s: float = PrivateAttr(default=0.0)

    @property
    def spent_s(self) -> float:
        """Return the seconds spent answering so far."""
        return self._spent_s

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        started = time.perf_counter()
        try:
            return super()._generate(*args, **kwargs)
        finally:
            self._spent_s += time.perf_counter() - started


class CallingReader(ExtractiveChatModel):
    """Answer as the demo's reader does, after a call that takes ``call_s`` and no processor."""

    call_s: float

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(self.call_s)
        return super()._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(self.call_s)
        return super()._generate(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Hold what all levels use, and the rows they add."""

    store: Any
    accelerator: Accelerator
    sizes: Sizes
    rows: list[Row]

    def arms(self, reader: Any | None, questions: Sequence[str]) -> tuple[Any, Any]:
        """Return the chain, plain and accelerated, both warm."""
        plain = build_chain(self.store, reader)
        fast = accelerate(plain, accelerator=self.accelerator)
        # Also makes the engine, under the settings the process has by itself, and its helper.
        for chain in (plain, fast):
            run_load(chain, questions, max(self.sizes.users), "threads")
        batch_rows(self.accelerator, "warm-up")
        return plain, fast

    def level(
        self, arms: tuple[Any, Any], asked: Sequence[str], users: int, repeats: int, what: str = ""
    ) -> list[Pairs[Load]]:
        """Return the runs of both shapes with so many users."""
        found: list[Pairs[Load]] = []
        for shape in SHAPES:
            pairs = _shape(*arms, asked, users, shape, self.sizes.tuning_questions, repeats)
            workload = f"{counted(users, 'user')}, {_CALLS[shape]}{what}"
            self.rows.extend(load_rows(pairs, workload, "answers_per_s"))
            self.rows.extend(ratio_rows(pairs, workload))
            self.rows.extend(batch_rows(self.accelerator, workload))
            self.rows.extend(_agreement(self.store, asked, pairs, workload))
            found.append(pairs)
        return found


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    found = material or prepare(None, None, default_cache(), progress=sys.stderr.isatty())
    questions = found.questions[: chosen.questions]
    tuning, most = questions[: chosen.tuning_questions], max(chosen.users)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    with bench_accelerator() as accelerator:
        bench = _Bench(found.store, accelerator, chosen, rows)
        arms = bench.arms(None, tuning)
        for users in chosen.users:
            level = bench.level(arms, questions[: PER_USER * users], users, chosen.repeats)
            if users == most:
                ratios |= _claims("demo", users, level)
            else:
                ratios[f"demo_p99_{users}"] = max(map(pooled_p99_ratio, level))
            _logger.info("%d users: %s", users, ratios)
        calling = bench.arms(CallingReader(call_s=chosen.model_call_s), tuning)
        what = f", model call of {1000 * chosen.model_call_s:g} ms"
        level = bench.level(calling, questions, most, chosen.model_call_repeats, what)
        ratios |= _claims("demo_model_call", most, level)
    rows.append(_reader_share(found.store, questions[:PER_USER], chosen))
    wrong = too_many(rows, "different_answers")
    return SuiteResult("demo", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


def _claims(name: str, users: int, level: Sequence[Pairs[Load]]) -> dict[str, float]:
    """Return throughput and tail, each of the worse shape."""
    return {
        f"{name}_throughput_{users}": min(map(throughput_ratio, level)),
        f"{name}_p99_{users}": max(map(p99_ratio, level)),
    }


def _shape(
    plain: Any,
    fast: Any,
    questions: Sequence[str],
    users: int,
    shape: Shape,
    tuning_questions: int,
    repeats: int,
) -> Pairs[Load]:
    best = _best_threads(plain, questions[:tuning_questions], users, shape)
    _logger.info("%d users, %s: plain runs best on %d torch threads", users, _CALLS[shape], best)
    return alternate(
        at_threads(best, lambda _: run_load(plain, questions, users, shape)),
        lambda _: run_load(fast, questions, users, shape),
        repeats,
    )


def _best_threads(plain: Any, asked: Sequence[str], users: int, shape: Shape) -> int:
    return best_torch_threads(lambda: run_load(plain, asked, users, shape).throughput_rps)


def _agreement(
    store: Any, questions: Sequence[str], pairs: Pairs[Load], workload: str
) -> list[Row]:
    """Count the answers of all runs that equal plain's of the same pair."""
    compared: list[Comparison] = [
        compare(store, questions, one.answers, other.answers)
        for one, other in zip(pairs.plain, pairs.other, strict=True)
    ]
    total = sum(one.total for one in compared)
    counts = {
        "identical_answers": sum(one.identical for one in compared),
        "score_ties": sum(one.ties for one in compared),
        "different_answers": sum(len(one.different) for one in compared),
    }
    return [
        Row("accelerated", workload, metric, count, None, total) for metric, count in counts.items()
    ]


def _reader_share(store: Any, questions: Sequence[str], sizes: Sizes) -> Row:
    """Return the reader's share of the plain chain's time, at one user and its best threads."""
    reader = TimedReader()
    plain = build_chain(store, reader)
    with torch_threads(_best_threads(plain, questions[: sizes.tuning_questions], 1, "threads")):
        before_s = reader.spent_s
        load = run_load(plain, questions, 1, "threads")
    share = (reader.spent_s - before_s) / load.wall_s
    if share >= MAX_READER_SHARE:
        _logger.warning("the reader takes %.0f %% of plain's time: too much", 100 * share)
    return Row("plain", f"1 user, {_CALLS['threads']}", "reader_share", share, None, len(questions))
