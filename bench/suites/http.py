"""Measure a chain behind FastAPI: a FAISS retriever, a prompt and a chat model of 20 ms.

It is served by uvicorn, one worker a process, plainly and accelerated, from a blocking endpoint, a
coroutine and a streaming one. The client is a process of its own with 64 connections, or with one;
each asks the next question as soon as it has an answer, to its last byte. Arms take turns run by
run over the same distinct questions; while one is asked, the other waits. The plain server runs
with the number of torch threads that serves it best at that endpoint and load, the accelerated one
as the process is by itself; single-flight is off and nothing is cached.

Every answer must be the plain one's: it is a digest of the whole prompt.

Ratios:
    sync_throughput: against the plain chain at its best torch threads: answers/s accelerated /
        plain, 64 connections, blocking endpoint; median over pairs of runs.
    async_throughput: against the plain chain at its best torch threads: answers/s accelerated /
        plain, 64 connections, coroutine endpoint; median over pairs of runs.
    stream_throughput: against the plain chain at its best torch threads: answers/s accelerated /
        plain, 64 connections, streaming endpoint; median over pairs of runs.
    sync_p99: against the plain chain at its best torch threads: 99th percentile of latency
        accelerated / plain, each within a run, blocking endpoint; median over pairs of runs.
    async_p99: against the plain chain at its best torch threads: 99th percentile of latency
        accelerated / plain, each within a run, coroutine endpoint; median over pairs of runs.
    stream_p99: against the plain chain at its best torch threads: 99th percentile of latency
        accelerated / plain, each within a run, streaming endpoint; median over pairs of runs.
    http_p50_1: against the plain chain at its best torch threads: median latency of one connection
        accelerated / plain, each over the requests of all runs; the worst endpoint.
    http_p99_1: against the plain chain at its best torch threads: 99th percentile of one
        connection's latency accelerated / plain, each over the requests of all runs; the worst
        endpoint.
    one_user: against the plain chain at its best torch threads: accelerated / plain time of one
        connection's request (lower is better; accepted: at most 1.03); median over pairs of
        requests, the worst endpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench.answers import too_many
from bench.arms import thread_candidates
from bench.loads import (
    load_rows,
    lone_ms,
    p99_ratio,
    pooled_p99_ratio,
    pooled_ratio,
    ratio_rows,
    throughput_ratio,
)
from bench.measure import Pairs, rotate
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of
from bench.serving.processes import Client, Server
from rag_accel.system.files import user_cache
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import Load
from rag_accel_demo.material import prepare

PLAIN, OURS = "plain", "accelerated"
ENDPOINTS = ("sync", "async", "stream")

_logger = logging.getLogger("bench.http")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        connections: of the loaded runs.
        questions: distinct questions of a loaded run.
        tuning_questions: of a run that looks for the best number of torch threads.
        alone: questions of a run with one connection.
        repeats: pairs of runs.
    """

    connections: int = 64
    questions: int = 384
    tuning_questions: int = 128
    alone: int = 64
    repeats: int = 5


QUICK = Sizes(questions=128, tuning_questions=64, alone=32, repeats=3)
FULL = Sizes()


@dataclass(frozen=True, slots=True)
class Bench:
    """The client and the servers: the plain ones by their torch threads, and ours."""

    client: Client
    plain: Mapping[int, Server]
    ours: Server
    questions: Sequence[str]
    sizes: Sizes

    def pairs(self, endpoint: str, connections: int) -> Pairs[Load]:
        """Return the runs of both arms at an endpoint."""
        path, asked = f"/{endpoint}", self.questions[: self._count(connections)]
        best = self._best(path, connections)
        arms = {PLAIN: self.plain[best], OURS: self.ours}
        found = rotate(
            {
                name: partial(self._run, server.url(path), asked, connections)
                for name, server in arms.items()
            },
            self.sizes.repeats,
        )
        _logger.info("%s, %d connections: plain on %d torch threads", path, connections, best)
        return Pairs(tuple(found[PLAIN]), tuple(found[OURS]))

    def _best(self, path: str, connections: int) -> int:
        """Return the number of torch threads with which the plain server answers fastest."""
        count = min(self._count(connections), self.sizes.tuning_questions)
        asked = self.questions[-count:]
        rates = {
            threads: self.client.load(server.url(path), asked, connections).throughput_rps
            for threads, server in self.plain.items()
        }
        return max(rates, key=lambda threads: rates[threads])

    def _run(self, url: str, asked: Sequence[str], connections: int, turn: int) -> Load:
        return self.client.load(url, asked, connections)

    def _count(self, connections: int) -> int:
        return self.sizes.alone if connections == 1 else self.sizes.questions


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    # Also makes the index, which the servers then read from the cache.
    questions = prepare(None, None, user_cache(), progress=False).questions
    with ExitStack() as stack:
        plain = {
            threads: stack.enter_context(Server("--torch-threads", str(threads)))
            for threads in thread_candidates(usable_cores())
        }
        ours = stack.enter_context(Server("--accelerated"))
        for server in (*plain.values(), ours):
            server.url("/")  # which waits until it is warm
        client = stack.enter_context(Client())
        bench = Bench(client, plain, ours, questions, chosen)
        many = {name: bench.pairs(name, chosen.connections) for name in ENDPOINTS}
        one = {name: bench.pairs(name, 1) for name in ENDPOINTS}
    more, alone = one_user(
        {f"/{name}, 1 connection": lone_ms(pairs) for name, pairs in one.items()}
    )
    rows = [
        *_rows(many, f"{chosen.connections} connections"),
        *_rows(one, "1 connection"),
        *more,
    ]
    found = {
        **{f"{name}_throughput": throughput_ratio(pairs) for name, pairs in many.items()},
        **{f"{name}_p99": p99_ratio(pairs) for name, pairs in many.items()},
        "http_p50_1": max(pooled_ratio(pairs, 0.5) for pairs in one.values()),
        "http_p99_1": max(pooled_p99_ratio(pairs) for pairs in one.values()),
        **alone,
    }
    _logger.info("%s", found)
    wrong = too_many(rows, "different_answers")
    return SuiteResult("http", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _rows(found: Mapping[str, Pairs[Load]], what: str) -> list[Row]:
    rows = list[Row]()
    for name, pairs in found.items():
        workload = f"/{name}, {what}"
        rows += load_rows(pairs, workload, "answers_per_s")
        rows += ratio_rows(pairs, workload)
        different = sum(
            one != other
            for plain, fast in zip(pairs.plain, pairs.other, strict=True)
            for one, other in zip(plain.answers, fast.answers, strict=True)
        )
        count = sum(len(load.answers) for load in pairs.other)
        rows.append(Row(OURS, workload, "different_answers", different, None, count))
    return rows
