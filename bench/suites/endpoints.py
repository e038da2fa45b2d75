"""Measure callers of a hosted language model whose endpoint refuses calls beyond its rate.

A chain of a prompt and LangChain's ``ChatOpenAI``, whose client asks three times, over a scripted
server in a process of its own. The server answers after 50 ms, any number of calls at once, and
takes 15 calls a second after a burst of 10; it refuses others with HTTP 429 and does not say when
to come again. Each turn has a server of its own, of which the process knows nothing before. Arms
are the chain plain and accelerated with the defaults; each answer must be the server's answer to
that question.

The rate allows a wall time: the callers less the calls that the server would take at once when they
begin, over the calls that it takes in a second.

Ratios:
    first_answered: against the plain chain, whose share is a row: share of the first 60 concurrent
        callers that get an answer, accelerated; over all turns; wanted 1.
    first_calls: against the least, which is 1: calls at the server / answers of these callers
        (lower is better); median over turns; wanted 2.1.
    next_calls: against the least, which is 1: calls at the server / answers of the next 60 callers,
        who come right after (lower is better); median over turns; wanted 1.15.
    next_wall: against the time that the rate allows: seconds until the last of these next callers
        has its answer / that time (lower is better); median over turns; wanted 1.15.
    interactive_p95: against the batch beside which they come: 95th percentile of the latencies of
        10 callers of ``accelerate(..., interactive=True)`` / of the calls of a batch of 60 begun
        before, accelerated too (lower is better); median over turns; wanted 0.3.
    no_refusals: against the plain chain at a server that refuses nothing: seconds of 60 concurrent
        callers accelerated / plain (lower is better); median over pairs of runs; wanted 1.005.
    two_processes_answered: against all callers: share of the callers of two processes, 30 in each
        at once, that get an answer; over all turns; wanted 1.
    two_processes_wall: against the time that the rate allows: seconds until the last caller of both
        processes has its answer / that time (lower is better); median over turns; wanted 1.3.
    two_processes_share: against half of the answers: the slower process's share of all answers
        until the faster one has its last; median over turns; wanted at least a third.
    one_user: against the plain chain at a server that refuses nothing: time of one caller's answer
        accelerated / plain (lower is better; accepted: at most 1.03); median over pairs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.limited_chats import (
    CallerProcess,
    Chain,
    Round,
    ask_all,
    ask_batch,
    chat_chain,
    limited_server,
    timed_chain,
)
from bench.loads import counted
from bench.measure import Pairs, alternate_async, differences, median, percentile, ratios
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from bench.serving.processes import HostedServer
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator

PLAIN, OURS = "plain", "accelerated"
ANSWERED, DIFFERENT = "answered_share", "different_answers"
CALLS, SHARE = "calls_an_answer", "share_of_slower"
LATENCY, WALL, ALLOWED = "latency_s", "wall_s", "allowed_wall_s"

_logger = logging.getLogger("bench.endpoints")
_Found = tuple[list[Row], dict[str, float]]
_numbers = count()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and the script of the server.

    Args:
        turns: servers of each workload that refuses calls.
        pairs: of runs at a server that refuses nothing.
        callers: that ask at once, and calls of a batch.
        interactive: callers that come while a batch runs.
        after_s: seconds after its begin at which they come.
        rate: calls that the server takes in a second.
        burst: calls that it takes at once at first.
        answer_s: seconds of an answer.
        lone_pairs: of calls of one caller at a server that refuses nothing.
    """

    turns: int = 2
    pairs: int = 9
    callers: int = 60
    interactive: int = 10
    after_s: float = 1.0
    rate: float = 15.0
    burst: int = 10
    answer_s: float = 0.05
    lone_pairs: int = 25

    def allowed_s(self, calls: int, tokens: float) -> float:
        """Return the seconds that the rate allows calls, when so many tokens are there."""
        return (calls - tokens) / self.rate

    def server(self) -> HostedServer:
        """Return a server that nobody knows."""
        return limited_server(self.answer_s, rate=self.rate, burst=self.burst)


QUICK = Sizes()
FULL = Sizes(turns=15, pairs=45, lone_pairs=100)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    rows, found = list[Row](), dict[str, float]()
    for part in (_unlimited, _callers, _interactive, _two_processes):
        more_rows, more = part(chosen)
        _logger.info("%s", more)
        rows += more_rows
        found |= more
    wrong = too_many(rows, DIFFERENT)
    return SuiteResult(
        "endpoints", tuple(rows), found, scripted=True, sizes=sizes_of(chosen), wrong=wrong
    )


@contextmanager
def _endpoint(sizes: Sizes) -> Iterator[tuple[HostedServer, Chain, Accelerator]]:
    """Give a server that nobody knows, the plain chain over it, and an accelerator."""
    with (
        sizes.server() as server,
        chat_chain(server.url("/v1")) as chain,
        bench_accelerator() as accelerator,
    ):
        yield server, timed_chain(chain), accelerator


def _questions(number: int) -> list[str]:
    """Return questions that nobody has asked before."""
    return [f"question {next(_numbers)}" for _ in range(number)]


def _answer_rows(system: str, workload: str, rounds: Sequence[Round]) -> list[Row]:
    asked = sum(len(each.questions) for each in rounds)
    answered = sum(each.num_answered for each in rounds)
    different = sum(each.num_different for each in rounds)
    return [
        Row(system, workload, ANSWERED, answered / asked, None, asked),
        Row(system, workload, DIFFERENT, different, None, answered),
    ]


def _unlimited(sizes: Sizes) -> _Found:
    workload = f"{counted(sizes.callers, 'caller')}, nothing refused"

    async def measure(plain: Chain, fast: Chain, callers: int, pairs: int) -> Pairs[Round]:
        return await alternate_async(
            lambda _: ask_all(plain, _questions(callers)),
            lambda _: ask_all(fast, _questions(callers)),
            pairs,
            warm_up=2,
        )

    async def both(plain: Chain, fast: Chain) -> tuple[Pairs[Round], Pairs[Round]]:
        many = await measure(plain, fast, sizes.callers, sizes.pairs)
        return many, await measure(plain, fast, 1, sizes.lone_pairs)

    with (
        limited_server(sizes.answer_s) as server,
        chat_chain(server.url("/v1")) as chain,
        bench_accelerator() as accelerator,
    ):
        plain = timed_chain(chain)
        fast = accelerate(plain, accelerator=accelerator)
        rounds, alone = asyncio.run(both(plain, fast))
    walls = rounds.map(lambda each: each.wall_s)
    rows = [
        row
        for system, played, wall_s in (
            (PLAIN, rounds.plain, walls.plain),
            (OURS, rounds.other, walls.other),
        )
        for row in (
            median_row(system, workload, WALL, wall_s),
            *_answer_rows(system, workload, played),
        )
    ]
    costs_ms = [in_ms(each) / sizes.callers for each in differences(walls)]
    rows.append(median_row(f"{OURS} - {PLAIN}", workload, "ms_a_call", costs_ms))
    one_caller = f"{counted(1, 'caller')}, nothing refused"
    more, lone = one_user({one_caller: alone.map(lambda each: in_ms(each.wall_s))})
    rows += [*_answer_rows(OURS, one_caller, alone.other), *more]
    return rows, {"no_refusals": median(ratios(walls)), **lone}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A round of callers at a server that counts their calls.

    Args:
        round: what they got.
        calls: that reached the server.
        tokens: that were there when they began.
    """

    round: Round
    calls: int
    tokens: float

    @property
    def calls_an_answer(self) -> float:
        return self.calls / self.round.num_answered

    def allowed_s(self, sizes: Sizes) -> float:
        return sizes.allowed_s(len(self.round.questions), self.tokens)


async def _seen(server: HostedServer, chain: Chain, sizes: Sizes) -> _Seen:
    tokens = server.state()["tokens"]
    played = await ask_all(chain, _questions(sizes.callers))
    return _Seen(played, server.state()["chats"], tokens)


def _callers(sizes: Sizes) -> _Found:
    async def measure(server: HostedServer, chain: Chain, rounds: int) -> list[_Seen]:
        return [await _seen(server, chain, sizes) for _ in range(rounds)]

    plain_turns, turns = list[list[_Seen]](), list[list[_Seen]]()
    for _ in range(sizes.turns):
        with _endpoint(sizes) as (server, chain, _):
            plain_turns.append(asyncio.run(measure(server, chain, 1)))
        with _endpoint(sizes) as (server, chain, accelerator):
            fast = accelerate(chain, accelerator=accelerator)
            turns.append(asyncio.run(measure(server, fast, 2)))
    workload = f"{counted(sizes.callers, 'caller')}, {sizes.rate:g} calls/s"
    (plain,), (first, then) = zip(*plain_turns, strict=True), zip(*turns, strict=True)
    rows = [
        *_seen_rows(PLAIN, f"the first {workload}", plain, sizes),
        *_seen_rows(OURS, f"the first {workload}", first, sizes),
        *_seen_rows(OURS, f"the next {workload}", then, sizes),
    ]
    return rows, {
        "first_answered": _answered_share([seen.round for seen in first]),
        "first_calls": median([seen.calls_an_answer for seen in first]),
        "next_calls": median([seen.calls_an_answer for seen in then]),
        "next_wall": median([seen.round.wall_s / seen.allowed_s(sizes) for seen in then]),
    }


def _answered_share(rounds: Sequence[Round]) -> float:
    return sum(each.num_answered for each in rounds) / sum(len(each.questions) for each in rounds)


def _seen_rows(system: str, workload: str, turns: Sequence[_Seen], sizes: Sizes) -> list[Row]:
    latencies = [seconds for seen in turns for seconds in seen.round.latencies_s]
    return [
        *_answer_rows(system, workload, [seen.round for seen in turns]),
        median_row(system, workload, CALLS, [seen.calls_an_answer for seen in turns]),
        median_row(system, workload, WALL, [seen.round.wall_s for seen in turns]),
        median_row(system, workload, ALLOWED, [seen.allowed_s(sizes) for seen in turns]),
        row_of(system, workload, LATENCY, latencies),
    ]


def _interactive(sizes: Sizes) -> _Found:
    async def measure(batch: Chain, fast: Chain) -> tuple[Round, Round]:
        running = asyncio.ensure_future(ask_batch(batch, _questions(sizes.callers)))
        await asyncio.sleep(sizes.after_s)
        users = await ask_all(fast, _questions(sizes.interactive))
        return await running, users

    turns = list[tuple[Round, Round]]()
    for _ in range(sizes.turns):
        with _endpoint(sizes) as (_, chain, accelerator):
            batch = accelerate(chain, accelerator=accelerator)
            fast = accelerate(chain, accelerator=accelerator, interactive=True)
            turns.append(asyncio.run(measure(batch, fast)))
    rows, workload = list[Row](), f"a batch of {sizes.callers} and interactive callers"
    for name, rounds in zip(("batch", "interactive"), zip(*turns, strict=True), strict=True):
        latencies = [seconds for each in rounds for seconds in each.latencies_s]
        rows.append(row_of(f"{OURS}, {name}", workload, LATENCY, latencies))
        rows += _answer_rows(f"{OURS}, {name}", workload, rounds)
    shares = [
        percentile(users.latencies_s, 0.95) / percentile(batch.latencies_s, 0.95)
        for batch, users in turns
    ]
    return rows, {"interactive_p95": median(shares)}


def _two_processes(sizes: Sizes) -> _Found:
    half = sizes.callers // 2
    rounds, walls, allowed, shares = list[Round](), list[float](), list[float](), list[float]()
    for turn in range(sizes.turns):
        with sizes.server() as server, ExitStack() as stack:
            names = (f"process {turn} a", f"process {turn} b")
            processes = [
                stack.enter_context(CallerProcess(server.url("/v1"), name, half)) for name in names
            ]
            for process in processes:
                process.said()
            tokens = server.state()["tokens"]
            with ThreadPoolExecutor(len(processes)) as threads:
                both = list(threads.map(CallerProcess.play, processes))
        rounds += both
        began_at = min(each.began_at for each in both)
        walls.append(max(each.began_at + each.wall_s for each in both) - began_at)
        allowed.append(sizes.allowed_s(2 * half, tokens))
        shares.append(share_of_slower(*both))
    workload = f"two processes of {counted(half, 'caller')}"
    rows = [
        *_answer_rows(OURS, workload, rounds),
        median_row(OURS, workload, WALL, walls),
        median_row(OURS, workload, ALLOWED, allowed),
        median_row(OURS, workload, SHARE, shares),
    ]
    return rows, {
        "two_processes_answered": _answered_share(rounds),
        "two_processes_wall": median(ratios(Pairs(tuple(allowed), tuple(walls)))),
        "two_processes_share": median(shares),
    }


def share_of_slower(one: Round, other: Round) -> float:
    """Return the slower round's share of all answers until the faster one has its last answer.

    Half if both are served alike; 0.0 if the slower one is served only then, or never.
    """
    if not (one.num_answered and other.num_answered):
        return 0.0
    fast, slow = sorted((_answered_at(one), _answered_at(other)), key=max)
    early = sum(at <= max(fast) for at in slow)
    return early / (early + len(fast))


def _answered_at(played: Round) -> list[float]:
    pairs = zip(played.answers, played.ended_at, strict=True)
    return [at for answer, at in pairs if answer is not None]
