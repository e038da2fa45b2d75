"""Measure what acceleration costs where it cannot help.

Arms take turns, on one thread or on one loop: ten calls each, or one round where there are many
callers. Workloads:

- leaves: a no-op chat model and a no-op retriever, which are borrowed, each accelerated by itself,
  so that every call also begins and ends a request;
- requests of one user: the one-shot chain prompt | no-op chat model | parser, and the demo's
  retrieval chain (real embeddings, store and reader), its plain arm on its best number of torch
  threads;
- runs of a RAGraph of 10 generations in a line on one no-op engine, owned by us or a borrowed
  function; there is no plain arm, the two engines take turns;
- 64 concurrent calls of a chat model that waits 100 ms;
- a prompt and a LangChain ``ChatOpenAI`` over a scripted server in a process of its own, which
  answers after 300 ms and refuses nothing; one caller;
- rounds of 16 users, each with one request, of six RAG programs in which nothing can be batched
  (``bench/unbatched``: five of LangGraph and one of LCEL, a chat model that waits 2 ms, embeddings
  and a store of LangChain's): plain, in a ``with activate():`` block, and as ``accelerate()`` gives
  them. The worse of both ways counts. Rows also hold the processor
  time of a round (``cpu_ms``), which other processes disturb less than its wall time;
- 200 concurrent calls of a sync retriever that runs another sync retriever, of 50 ms, on a loop of
  its own, in a child process (``bench/nested_callers.py``). If it does not end, the suite fails.

Answers must be the plain ones, but where the retrieval chain's documents have scores as close as
1e-5.

Ratios:
    leaf_overhead_ms: against the same leaf called plainly: median over pairs of (accelerated -
        plain) time of one leaf call, in ms; the worst of chat model and retriever, invoke and
        ainvoke.
    noop_graph_ms: against nothing, ours alone: median time of one run of the RAGraph, in ms; the
        worst of both engines, run and arun.
    nothing_helps: against the same chain run plainly by LangChain, at its best torch threads:
        median over pairs of accelerated / plain time of one request; the worst of both chains,
        invoke and ainvoke.
    nothing_helps_low: against the same chain run plainly by LangChain: lower end of the 95 %
        bootstrap interval of nothing_helps within a process; other processes differ by more.
    nothing_helps_high: against the same chain run plainly by LangChain: upper end of the 95 %
        bootstrap interval of nothing_helps within a process; other processes differ by more.
    nothing_helps_ms: against the same chain run plainly by LangChain: median over pairs of
        (accelerated - plain) time of one request, in ms; the worst of both chains, invoke and
        ainvoke.
    nothing_helps_of_limit: against the same chain run plainly by LangChain: nothing_helps_ms of a
        workload / the larger of 3 % of its plain median and 0.5 ms; the worst of both chains,
        invoke and ainvoke. At most 1 keeps the guarantee.
    hosted_300ms: against the same chain run plainly by LangChain: median over pairs of accelerated
        / plain time of one request to the hosted model; the worse of invoke and ainvoke; wanted
        1.005.
    concurrent_fakes_s: against nothing, ours alone (the plain model's is a row): seconds that the
        concurrent calls of the accelerated chat model that waits take together; median over
        repeats.
    nothing_helps_16_mean: against the same programs run by plain LangGraph and LangChain: median
        over pairs of accelerated / plain time of one round of 16 users, the worse of activate() and
        accelerate(); the mean of the six programs.
    nothing_helps_16_worst: against the same programs run by plain LangGraph and LangChain: median
        over pairs of accelerated / plain time of one round of 16 users, the worse of activate() and
        accelerate(); of the program where it is highest.
    nothing_helps_16_leaf_ms: against the same programs run by plain LangGraph and LangChain:
        median over pairs of (accelerated - plain) time of one round / leaf calls of a round, in ms,
        the worse of activate() and accelerate(); the worst of the six programs.
    nested_callers: against the same retriever called plainly: accelerated / plain time until all
        concurrent calls of the sync retriever have ended; median over pairs.
    one_user: against the same programs run plainly: accelerated / plain time of one user's request
        (lower is better; accepted: at most 1.03); median over pairs, the worst of the retrieval
        chain, the hosted chain and the six programs, invoke and ainvoke, activate() and
        accelerate().
    one_user_ms: against the same chain run plainly: (accelerated - plain) time of one user's
        request in ms (lower is better; accepted: at most 0.06), median over pairs, the worse of
        invoke and ainvoke, of the one-shot chain, which takes less than 2 ms.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.answers import too_many
from bench.arms import bench_accelerator, best_torch_threads
from bench.garbage import little_garbage
from bench.limited_chats import chat_chain, limited_server
from bench.measure import Pairs, alternate_async, median, ratios, timed_async
from bench.nested_callers import Nested, time_nested
from bench.no_op import NoOpChatModel, NoOpRetriever, one_shot_chain
from bench.no_op_graph import time_graphs
from bench.paired import PairedTimes, Same, in_ms, one_user, time_pairs
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from bench.unbatched.rounds import BUILDERS, Rounds, time_rounds
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.system.files import user_cache
from rag_accel_demo.command import build_chain
from rag_accel_demo.load import run_load, torch_threads
from rag_accel_demo.material import Material, prepare
from rag_accel_demo.report import compare

FAKE_DELAY_S = 0.1
HOSTED_S = 0.3
#: calls of each arm of the hosted model before, which make its connections
HOSTED_WARM_UP = 2
GRAPH_NODES = 10
ONE_SHOT = "one-shot chain"
NESTED_LIMIT_S = 60.0

_logger = logging.getLogger("bench.overhead")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        leaf_pairs, chain_pairs, retrieval_pairs: pairs of calls of each workload.
        graph_runs: runs of the RAGraph on each engine.
        warm_up: calls of each arm before, which do not count.
        hosted_pairs: pairs of calls of the chain over a hosted model.
        concurrent: calls at once of the chat model that waits.
        concurrent_repeats: how often these are made.
        tuning_questions: questions of a run that looks for the best number of torch threads.
        users, round_pairs: users of a round, and pairs of rounds of each program and way; one user
            has as many.
        round_warm_up: rounds of each arm before, which do not count.
        nested_callers, nested_pairs: concurrent calls of the sync retriever, and how often.
    """

    leaf_pairs: int
    chain_pairs: int
    retrieval_pairs: int
    graph_runs: int
    warm_up: int
    hosted_pairs: int
    concurrent: int
    concurrent_repeats: int
    tuning_questions: int
    users: int
    round_pairs: int
    round_warm_up: int
    nested_callers: int
    nested_pairs: int


QUICK = Sizes(
    leaf_pairs=1000,
    chain_pairs=500,
    retrieval_pairs=200,
    graph_runs=500,
    warm_up=20,
    hosted_pairs=30,
    concurrent=64,
    concurrent_repeats=5,
    tuning_questions=64,
    users=16,
    round_pairs=21,
    round_warm_up=2,
    nested_callers=200,
    nested_pairs=5,
)
FULL = Sizes(
    leaf_pairs=5000,
    chain_pairs=3000,
    retrieval_pairs=1000,
    graph_runs=3000,
    warm_up=50,
    hosted_pairs=200,
    concurrent=64,
    concurrent_repeats=25,
    tuning_questions=128,
    users=16,
    round_pairs=45,
    round_warm_up=3,
    nested_callers=200,
    nested_pairs=9,
)


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    # First, while the process holds no model whose threads and memory would take part.
    with little_garbage():
        rounds, lone = (_rounds(chosen, users) for users in (chosen.users, 1))
    served = material or prepare(None, None, user_cache(), progress=sys.stderr.isatty())
    with bench_accelerator() as accelerator, little_garbage():
        leaves = _leaves(accelerator, chosen)
        requests = [*_one_shot(accelerator, chosen), *_retrieval(served, accelerator, chosen)]
        served_chats = _hosted(accelerator, chosen)
        waits = _concurrent_fakes(accelerator, chosen)
    graphs = time_graphs(GRAPH_NODES, chosen.graph_runs, chosen.warm_up)
    nested = time_nested(chosen.nested_callers, chosen.nested_pairs, NESTED_LIMIT_S)
    waiting = f"{chosen.concurrent} concurrent ainvoke of {in_ms(FAKE_DELAY_S):.0f} ms"
    rows = [
        *(row for one in (*leaves, *requests, *served_chats) for row in one.rows()),
        *graphs,
        *_total_rows(waiting, waits),
        *(row for one in rounds for row in one.rows()),
        *_nested_rows(f"{chosen.nested_callers} nested callers", nested),
    ]
    found = _ratios_of_calls(leaves, requests, graphs, waits) | _ratios_of_rounds(rounds)
    found["hosted_300ms"] = max(one.ratio for one in served_chats)
    found["nested_callers"] = median(ratios(nested.total_s))
    alone = {one.workload: one.times_ms for one in (*requests, *served_chats)}
    alone |= {f"{one.workload}, {way.name}": way.wall.times_ms for one in lone for way in one.ways}
    short = [one.workload for one in requests if one.workload.startswith(ONE_SHOT)]
    more, lone_ratios = one_user(alone, short)
    rows, found = [*rows, *(row for one in lone for row in one.rows()), *more], found | lone_ratios
    wrong = too_many(rows, "different_answers")
    scripted = "the models without work and the hosted model sleep; the rest is real"
    return SuiteResult(
        "overhead", tuple(rows), found, scripted=scripted, sizes=sizes_of(chosen), wrong=wrong
    )


def _ratios_of_calls(
    leaves: Sequence[PairedTimes],
    requests: Sequence[PairedTimes],
    graphs: Sequence[Row],
    waits: Pairs[float],
) -> dict[str, float]:
    slowest = max(requests, key=lambda one: one.ratio)
    return {
        "leaf_overhead_ms": max(one.extra_ms for one in leaves),
        "noop_graph_ms": max(row.median for row in graphs),
        "nothing_helps": slowest.ratio,
        "nothing_helps_low": slowest.interval.low,
        "nothing_helps_high": slowest.interval.high,
        "nothing_helps_ms": max(one.extra_ms for one in requests),
        "nothing_helps_of_limit": max(one.share_of_limit for one in requests),
        "concurrent_fakes_s": median(waits.other),
    }


def _ratios_of_rounds(rounds: Sequence[Rounds]) -> dict[str, float]:
    return {
        "nothing_helps_16_mean": statistics.fmean(one.ratio for one in rounds),
        "nothing_helps_16_worst": max(one.ratio for one in rounds),
        "nothing_helps_16_leaf_ms": max(one.leaf_ms for one in rounds),
    }


def _total_rows(workload: str, pairs: Pairs[float]) -> list[Row]:
    return [
        row_of("plain", workload, "total_s", pairs.plain),
        row_of("accelerated", workload, "total_s", pairs.other),
    ]


def _nested_rows(workload: str, nested: Nested) -> list[Row]:
    counted = nested.num_different, None, nested.num_answers
    return [
        *_total_rows(workload, nested.total_s),
        median_row("accelerated / plain", workload, "total_ratio", ratios(nested.total_s)),
        Row("plain and accelerated", workload, "different_answers", *counted),
    ]


def _rounds(sizes: Sizes, users: int) -> list[Rounds]:
    with bench_accelerator() as accelerator:
        return [
            time_rounds(build, accelerator, users, sizes.round_pairs, sizes.round_warm_up)
            for build in BUILDERS
        ]


def _leaves(accelerator: Accelerator, sizes: Sizes) -> list[PairedTimes]:
    found: list[PairedTimes] = []
    for name, leaf in (("chat model", NoOpChatModel()), ("retriever", NoOpRetriever())):
        fast = accelerate(leaf, accelerator=accelerator)
        pairs, warm_up = sizes.leaf_pairs, sizes.warm_up
        found += time_pairs(name, leaf, fast, ["?"], pairs, warm_up, same=_same_content)
    return found


def _same_content(plain: Any, other: Any) -> bool:
    """Compare what leaves answer; a message has an id of its own each time."""
    return getattr(plain, "content", plain) == getattr(other, "content", other)


def _one_shot(accelerator: Accelerator, sizes: Sizes) -> list[PairedTimes]:
    plain = one_shot_chain()
    fast = accelerate(plain, accelerator=accelerator)
    asked = [{"question": "?"}]
    return time_pairs(ONE_SHOT, plain, fast, asked, sizes.chain_pairs, sizes.warm_up)


def _retrieval(material: Material, accelerator: Accelerator, sizes: Sizes) -> list[PairedTimes]:
    plain = build_chain(material.store)
    fast = accelerate(plain, accelerator=accelerator)
    questions = material.questions
    # Makes the engine, under the settings the process has by itself.
    fast.invoke(questions[0])
    asked = questions[: sizes.tuning_questions]
    best = best_torch_threads(lambda: run_load(plain, asked, 1, "threads").throughput_rps)
    _logger.info("retrieval chain: plain runs best on %d torch threads", best)
    return time_pairs(
        "retrieval chain",
        plain,
        fast,
        questions,
        sizes.retrieval_pairs,
        sizes.warm_up,
        around_plain=lambda: torch_threads(best),
        same=_same_answer(material.store),
    )


def _hosted(accelerator: Accelerator, sizes: Sizes) -> list[PairedTimes]:
    with limited_server(HOSTED_S) as server, chat_chain(server.url("/v1")) as plain:
        fast, asked = accelerate(plain, accelerator=accelerator), [{"question": "?"}]
        return time_pairs(
            *("hosted chain", plain, fast, asked, sizes.hosted_pairs, HOSTED_WARM_UP),
            same=_same_content,
        )


def _same_answer(store: Any) -> Same:
    """Return what compares answers of the retrieval chain; ties of scores are no difference."""
    return lambda plain, other: not compare(store, [plain["question"]], [plain], [other]).different


def _concurrent_fakes(accelerator: Accelerator, sizes: Sizes) -> Pairs[float]:
    plain = NoOpChatModel(delay_s=FAKE_DELAY_S)
    fast = accelerate(plain, accelerator=accelerator)

    async def ask_all(model: NoOpChatModel) -> None:
        await asyncio.gather(*(model.ainvoke("?") for _ in range(sizes.concurrent)))

    async def measure_async() -> Pairs[float]:
        return await alternate_async(
            timed_async(lambda _: ask_all(plain)),
            timed_async(lambda _: ask_all(fast)),
            sizes.concurrent_repeats,
            warm_up=1,
        )

    return asyncio.run(measure_async())
