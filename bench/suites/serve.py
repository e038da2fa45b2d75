"""Measure what ``rag-accel serve`` costs: a chain over HTTP against the same chain called directly.

Two accelerated chains: one that does nothing, and the demo's, which retrieves with MiniLM and
answers with a reader and its four documents. Each is called in a process that holds it, by
``ainvoke`` on one loop; served by ``rag-accel serve``; and served by the endpoint that a user would
write instead, FastAPI's and uvicorn's around ``await chain.ainvoke(...)``, with a model of pydantic
for the body. Both servers run on asyncio and h11; the endpoint has neither admission, deadlines,
hosts, metrics nor bounds of a connection. The client is a process of its own, with one kept
connection, or with 16; each asks the next question as soon as it has the answer.

Arms take turns run by run over the same questions; while one is asked, the others wait. Every
answer must be the one in process. Single-flight is off and nothing is cached.

Ratios:
    serve_overhead_ms: against the same accelerated chain in process: median latency of one
        connection served - in process, the chain that does nothing; median over turns (lower is
        better).
    serve_overhead_retrieval_ms: against the same accelerated chain in process: the same for the
        demo's chain.
    serve_vs_fastapi_ms: against the hand-written endpoint of FastAPI: median latency of one
        connection served - its, the chain that does nothing; median over turns (lower is better).
    serve_vs_fastapi_retrieval_ms: against the hand-written endpoint of FastAPI: the same for the
        demo's chain.
    serve_throughput_16: against the hand-written endpoint of FastAPI: answers/s served / its, 16
        connections, the chain that does nothing; median over turns.
    serve_throughput_16_retrieval: against the hand-written endpoint of FastAPI: the same for the
        demo's chain.
    one_user: against the hand-written endpoint of FastAPI: time of one connection's request served
        / its (lower is better; accepted: at most 1.03), the demo's chain; median over pairs
        of requests.
    one_user_ms: against the hand-written endpoint of FastAPI: time of one connection's request
        served - its in ms (lower is better; accepted: at most 0.06), the chain that does nothing;
        median over pairs of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import httpx

from bench.answers import too_many
from bench.loads import counted, lone_ms, system_rows
from bench.measure import Pairs, differences, median, ratios, rotate
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of
from bench.serving.objects import INPUTS, NO_OP, RETRIEVAL
from bench.serving.processes import Client, FastAPIEndpoint, InProcess, ServeCommand
from rag_accel.errors import EngineError
from rag_accel.system.files import user_cache
from rag_accel_demo.load import Load
from rag_accel_demo.material import prepare

IN_PROCESS, OURS, FASTAPI = "in process", "rag-accel serve", "FastAPI endpoint"
WORKLOADS = {NO_OP: "chain that does nothing", RETRIEVAL: "demo's chain"}
_ENDS = {NO_OP: "", RETRIEVAL: "_retrieval"}

Arm = Callable[[Sequence[str], int], Load]
"""Asks questions over so many connections, or by so many callers."""

_logger = logging.getLogger("bench.serve")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        objects: the chains.
        alone: questions of a run with one connection, by chain.
        connections: of the loaded runs.
        loaded: questions of a loaded run, by chain.
        repeats: turns of each arm.
    """

    objects: tuple[str, ...] = (NO_OP, RETRIEVAL)
    alone: Mapping[str, int] = field(default_factory=lambda: {NO_OP: 400, RETRIEVAL: 100})
    connections: int = 16
    loaded: Mapping[str, int] = field(default_factory=lambda: {NO_OP: 1600, RETRIEVAL: 320})
    repeats: int = 11


QUICK = Sizes(alone={NO_OP: 200, RETRIEVAL: 32}, loaded={NO_OP: 480, RETRIEVAL: 80}, repeats=5)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    most = max(chosen.loaded[name] for name in chosen.objects)
    questions = _questions(most)
    rows: list[Row] = []
    found: dict[str, float] = {}
    with Client() as client:
        for name in chosen.objects:
            with ExitStack() as stack:
                arms = _arms(stack, client, name)
                found |= _measured(arms, name, questions, chosen, rows)
    _logger.info("%s", found)
    wrong = too_many(rows, "different_answers")
    return SuiteResult("serve", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _questions(count: int) -> list[str]:
    """Return so many of the demo's questions, from the first again where there are fewer."""
    # Also makes the index, which the processes then read from the cache.
    known = prepare(None, None, user_cache(), progress=False).questions
    return [known[at % len(known)] for at in range(count)]


def _arms(stack: ExitStack, client: Client, name: str) -> dict[str, Arm]:
    """Return the arms of a chain; each process ends with the stack."""
    inputs = ("--input", INPUTS[name]) if name == NO_OP else ()
    in_process = stack.enter_context(InProcess(name))
    served = stack.enter_context(ServeCommand(name, *inputs))
    endpoint = stack.enter_context(FastAPIEndpoint(name))
    stack.callback(lambda: _require_scheduled(served.url("/metrics")))

    def over_http(url: str) -> Arm:
        return lambda asked, users: client.load(url, asked, users, INPUTS[name])

    return {
        IN_PROCESS: in_process.load,
        OURS: over_http(served.url("/invoke")),
        FASTAPI: over_http(endpoint.url("/invoke")),
    }


def _require_scheduled(metrics_url: str) -> None:
    """Raise EngineError if leaves of the served chain ran plainly."""
    lines = httpx.get(metrics_url, timeout=30).text.splitlines()
    plainly = [line for line in lines if line.startswith("rag_accel_bypassed")]
    if plainly:
        raise EngineError("leaves of the served chain ran plainly", found="; ".join(plainly))


def _measured(
    arms: Mapping[str, Arm], name: str, questions: Sequence[str], sizes: Sizes, rows: list[Row]
) -> dict[str, float]:
    """Return the ratios of a chain, and add its rows."""
    loaded = questions[: sizes.loaded[name]]
    for arm in arms.values():  # imports, compiled models, pools of threads
        arm(loaded, sizes.connections)
    alone = _in_turn(arms, questions[: sizes.alone[name]], 1, sizes.repeats)
    many = _in_turn(arms, loaded, sizes.connections, sizes.repeats)
    for loads, connections in ((alone, 1), (many, sizes.connections)):
        workload = f"{WORKLOADS[name]}, {counted(connections, 'connection')}"
        for system, each in loads.items():
            rows += system_rows(system, workload, each, "answers_per_s")
            rows.append(_different(system, workload, loads[IN_PROCESS], each))
    end, workload = _ENDS[name], f"{WORKLOADS[name]}, {counted(1, 'connection')}"
    pairs = lone_ms(Pairs(tuple(alone[FASTAPI]), tuple(alone[OURS])))
    more, lone = one_user({workload: pairs}, short=[workload] if name == NO_OP else ())
    rows += more
    return {
        f"serve_overhead{end}_ms": _later_ms(alone[IN_PROCESS], alone[OURS]),
        f"serve_vs_fastapi{end}_ms": _later_ms(alone[FASTAPI], alone[OURS]),
        f"serve_throughput_16{end}": _faster(many[FASTAPI], many[OURS]),
        **lone,
    }


def _in_turn(
    arms: Mapping[str, Arm], asked: Sequence[str], connections: int, repeats: int
) -> dict[str, list[Load]]:
    def run_arm(arm: Arm, turn: int) -> Load:
        return arm(asked, connections)

    return rotate({name: partial(run_arm, arm) for name, arm in arms.items()}, repeats)


def _later_ms(plain: Sequence[Load], other: Sequence[Load]) -> float:
    """Return other - plain of the median latencies in ms: the median over turns."""
    pairs = Pairs(tuple(plain), tuple(other))
    return median(differences(pairs.map(lambda load: load.median_ms)))


def _faster(plain: Sequence[Load], other: Sequence[Load]) -> float:
    """Return other / plain of the throughputs: the median over turns."""
    pairs = Pairs(tuple(plain), tuple(other))
    return median(ratios(pairs.map(lambda load: load.throughput_rps)))


def _different(system: str, workload: str, plain: Sequence[Load], other: Sequence[Load]) -> Row:
    different = sum(
        one != another
        for load, its in zip(plain, other, strict=True)
        for one, another in zip(load.answers, its.answers, strict=True)
    )
    count = sum(len(load.answers) for load in other)
    return Row(system, workload, "different_answers", different, None, count)
