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

With 64 users the same chain also runs with its store's queries embedded by the opponents that are
the fastest at that: micro-batchers over OpenVINO and ONNX Runtime, with committed settings
(``bench/baselines``). Our model is compiled before anything counts.

What lives before the first run is kept out of garbage collections: a full one takes a third of a
second here, and would fall to one arm or another by chance.

Every answer must be the plain one's, but where documents have scores as close as 1e-5.

Ratios:
    demo_vs_best_peer: against the same chain with its embeddings behind a micro-batcher over
        OpenVINO or ONNX Runtime, whichever is faster: answers/s accelerated / theirs with 64 users;
        median over turns, the lower of both shapes.
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
    one_user: against the plain chain (LangChain, torch, one text a call) at its best torch threads:
        accelerated / plain time of one user's request (lower is better; accepted: at most 1.03);
        median over pairs of requests, the higher of both shapes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.chains import CALLS, ChainBench, Found, best_threads
from bench.garbage import little_garbage
from bench.loads import lone_ms, p99_ratio, pooled_p99_ratio, throughput_ratio
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.system.files import user_cache
from rag_accel_demo.command import build_chain
from rag_accel_demo.extractive.chat_model import ExtractiveChatModel
from rag_accel_demo.load import SHAPES, run_load, torch_threads
from rag_accel_demo.material import Material, prepare

MAX_READER_SHARE = 0.3

_logger = logging.getLogger("bench.demo")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

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


QUICK = Sizes((1, 16, 64), 256, 64, 3)
FULL = Sizes((1, 16, 64), 512, 128, 9, model_call_repeats=9)
#: Most questions a user asks in one run: with one user, all would take most of the time.
PER_USER = 96


class TimedReader(ExtractiveChatModel):
    """The demo's reader, with the seconds it takes added up; for one user only."""

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
    """The demo's reader after a call that takes ``call_s`` and no processor."""

    call_s: float

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(self.call_s)
        return super()._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(self.call_s)
        return super()._generate(*args, **kwargs)


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    found = material or prepare(None, None, user_cache(), progress=sys.stderr.isatty())
    questions = found.questions[: chosen.questions]
    tuning, most = questions[: chosen.tuning_questions], max(chosen.users)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    with bench_accelerator() as accelerator, little_garbage(), ExitStack() as stack:
        bench = ChainBench(found, accelerator, most, tuning, rows)
        chains = bench.chains(None)
        for users in chosen.users:
            arms = {**chains, **bench.peers(stack)} if users == most else chains
            level = bench.level(arms, questions[: PER_USER * users], users, chosen.repeats)
            if users == most:
                ratios |= _against_peers(level) | _claims("demo", users, level)
            else:
                ratios[f"demo_p99_{users}"] = max(pooled_p99_ratio(one.pairs) for one in level)
            if users == 1:
                shapes = (f"1 user, {CALLS[shape]}" for shape in SHAPES)
                alone = (lone_ms(one.pairs) for one in level)
                more, found_alone = one_user(dict(zip(shapes, alone, strict=True)))
                rows += more
                ratios |= found_alone
            _logger.info("%d users: %s", users, ratios)
        calling = bench.chains(CallingReader(call_s=chosen.model_call_s))
        what = f", model call of {1000 * chosen.model_call_s:g} ms"
        level = bench.level(calling, questions, most, chosen.model_call_repeats, what)
        ratios |= _claims("demo_model_call", most, level)
    rows.append(_reader_share(found.store, questions[:PER_USER], chosen))
    wrong = too_many(rows, "different_answers")
    return SuiteResult("demo", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


def _claims(name: str, users: int, level: Sequence[Found]) -> dict[str, float]:
    """Return throughput and tail, each of the worse shape."""
    return {
        f"{name}_throughput_{users}": min(throughput_ratio(one.pairs) for one in level),
        f"{name}_p99_{users}": max(p99_ratio(one.pairs) for one in level),
    }


def _against_peers(level: Sequence[Found]) -> dict[str, float]:
    """Return our throughput against the fastest opponent's, in the worse shape."""
    found = [
        throughput_ratio(one.against(peer))
        for one in level
        if (peer := one.fastest_peer) is not None
    ]
    return {"demo_vs_best_peer": min(found)} if found else {}


def _reader_share(store: Any, questions: Sequence[str], sizes: Sizes) -> Row:
    """Return the reader's share of the plain chain's time, at one user and its best threads."""
    reader = TimedReader()
    plain = build_chain(store, reader)
    with torch_threads(best_threads(plain, questions[: sizes.tuning_questions], 1, "threads")):
        before_s = reader.spent_s
        load = run_load(plain, questions, 1, "threads")
    share = (reader.spent_s - before_s) / load.wall_s
    if share >= MAX_READER_SHARE:
        _logger.warning("the reader takes %.0f %% of plain's time: too much", 100 * share)
    return Row("plain", f"1 user, {CALLS['threads']}", "reader_share", share, None, len(questions))
