"""Measure what the skeleton of a LangGraph program gives to depth-aware order.

One node asks for many vectors at once; beside it a subgraph of four steps asks for one vector and
then a model, step by step. All vectors come from one owned engine. With the skeleton the scheduler
knows that the subgraph's calls have the longer way to go and starts them first, so that the model
answers while the engine works on the rest. Without it all calls of a run have the same, unknown
depth and start as they came: the order is lost. The program, its intercepted calls and everything
else but the option ``use_skeleton`` are equal in both arms, which take turns.

Engine and model are stand-ins that take a scripted time (a step 5 ms and 2 ms a text, at most 8
texts; an answer 60 ms), so this shows what order is worth there, not what a model of yours gains.
``off again / off`` is the noise: two arms that are the same.

Ratios:
    langgraph_depth_latency: latency of one run with the skeleton / without, one user; median over
        pairs.
    langgraph_depth_latency_4: the same for four users at once, the mean of their runs.
    langgraph_depth_noise: latency of one run without the skeleton / the same again, one user;
        median over pairs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from bench.arms import bench_accelerator
from bench.loads import counted
from bench.measure import Pairs, alternate_async, median, ratios
from bench.paired import in_ms
from bench.results import Row, SuiteResult, row_of
from langchain_rag_accel import accelerate
from langchain_rag_accel.context import find_identity
from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import Engine, LatencyModel, PrimitiveKind, TextBatch
from rag_accel.errors import SchedulingError
from rag_accel.testing import FAKE_PROFILE, FakeEngine

STEPS = 4
ENGINE_LATENCY = LatencyModel(base_s=0.005, per_item_s=0.002)
_logger = logging.getLogger("bench.langgraph_depth")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        pairs: pairs of turns, of each number of users.
        wide: texts that the wide node asks for.
        batch: most texts of one step of the engine.
        answer_s: how long the model takes.
    """

    pairs: int
    wide: int = 96
    batch: int = 8
    answer_s: float = 0.06


QUICK = Sizes(pairs=20)
FULL = Sizes(pairs=100)


class State(TypedDict):
    """Carry what each user asks."""

    question: str


@dataclass
class Program:
    """Build the graph, and run it for some users at once.

    Args:
        accelerator: schedules the calls.
        sizes: how much work a run is.
    """

    accelerator: Accelerator
    sizes: Sizes
    graph: Any = field(init=False)

    def __post_init__(self) -> None:
        self._engine = self.accelerator.own(self, "embedding", self._make)
        graph = StateGraph(State)
        graph.add_node("wide", self._wide)
        graph.add_node("line", self._line())
        graph.add_edge(START, "wide")
        graph.add_edge(START, "line")
        self.graph = accelerate(graph.compile(), accelerator=self.accelerator)

    async def latency_s(self, users: int) -> float:
        """Return the mean time of one run of each user, all started at once."""

        async def one(number: int) -> float:
            started = time.perf_counter()
            await self.graph.ainvoke({"question": f"question {number}"})
            return time.perf_counter() - started

        return sum(await asyncio.gather(*map(one, range(users)))) / users

    def _make(self) -> Engine:
        profile = replace(FAKE_PROFILE, max_batch=self.sizes.batch, latency=ENGINE_LATENCY)
        return FakeEngine(profile, wait=time.sleep)

    def _line(self) -> Any:
        line = StateGraph(State)
        names = [f"step{number}" for number in range(STEPS)]
        for name in names:
            line.add_node(name, self._step)
        for source, target in zip([START, *names], names, strict=False):
            line.add_edge(source, target)
        return line.compile()

    async def _wide(self, state: State) -> dict[str, Any]:
        texts = [f"{state['question']}, part {number}" for number in range(self.sizes.wide)]
        await asyncio.gather(*map(self._embed, texts))
        return {}

    async def _step(self, state: State) -> dict[str, Any]:
        await self._embed(state["question"])
        await asyncio.sleep(self.sizes.answer_s)  # a remote model answers
        return {}

    async def _embed(self, text: str) -> Any:
        identity = find_identity()
        if identity is None:
            raise SchedulingError("a call of the program was not intercepted", where="bench")
        work = Work(self._engine, PrimitiveKind.EMBEDDING, TextBatch((text,)))
        return await self.accelerator.leaves.acompute(identity, work)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    with (
        bench_accelerator(use_skeleton=False) as blind,
        bench_accelerator(use_skeleton=False) as again,
        bench_accelerator(use_skeleton=True) as knowing,
    ):
        off, also_off, on = (Program(arm, chosen) for arm in (blind, again, knowing))
        return asyncio.run(_measure(off, also_off, on, chosen.pairs))


async def _measure(off: Program, also_off: Program, on: Program, pairs: int) -> SuiteResult:
    one = await _pairs(off, on, 1, pairs)
    four = await _pairs(off, on, 4, pairs)
    noise = await _pairs(off, also_off, 1, pairs)
    rows = [*_rows(one, 1), *_rows(four, 4)]
    rows.append(row_of("skeleton off again / off", "1 user", "latency_ratio", ratios(noise)))
    found = {
        "langgraph_depth_latency": median(ratios(one)),
        "langgraph_depth_latency_4": median(ratios(four)),
        "langgraph_depth_noise": median(ratios(noise)),
    }
    _logger.info("%s", found)
    return SuiteResult("langgraph_depth", tuple(rows), found, emulated=True)


async def _pairs(plain: Program, other: Program, users: int, pairs: int) -> Pairs[float]:
    async def without(turn: int) -> float:
        return await plain.latency_s(users)

    async def with_it(turn: int) -> float:
        return await other.latency_s(users)

    return await alternate_async(without, with_it, pairs, warm_up=1)


def _rows(pairs: Pairs[float], users: int) -> list[Row]:
    workload = counted(users, "user")
    times = pairs.map(in_ms)
    return [
        row_of("skeleton off", workload, "latency_ms", times.plain),
        row_of("skeleton on", workload, "latency_ms", times.other),
        row_of("on / off", workload, "latency_ratio", ratios(pairs)),
    ]
