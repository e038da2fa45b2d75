"""Time a RAGraph whose engines do nothing, so that what is left of a run is scheduling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.measure import Pairs, alternate, alternate_async, timed, timed_async
from bench.paired import in_ms
from bench.results import Row, row_of
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import (
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationOutput,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.graph import END, START, FrozenRAGraph, RAGraph

ENGINE = "nothing"
_OUTPUT = GenerationOutput("nothing")


class NoOpEngine(EngineBase):
    """An engine that ends every DECODING work in the next step with one fixed word."""

    profile = EngineProfile(kinds=frozenset({PrimitiveKind.DECODING}), max_threads=1)

    def __init__(self) -> None:
        self._held: list[EngineRequest] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work."""
        self._held.extend(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """End all work taken."""
        held, self._held = self._held, []
        return [EngineOutput(request.id, "final", _OUTPUT) for request in held]


def answer_nothing(prompt: str) -> str:
    """Be the borrowed engine that does nothing."""
    return _OUTPUT.text


def line_graph(nodes: int) -> FrozenRAGraph:
    """Return generations one after the other, each reading what the one before wrote."""
    graph = RAGraph()
    names = [f"stage{number}" for number in range(1, nodes + 1)]
    for read, name in zip(["input", *names], names, strict=False):
        graph.add_generation(name, f"{{{read}}}", engine=ENGINE)
    for source, target in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(source, target)
    return graph.freeze()


def time_graphs(nodes: int, runs: int, warm_up: int) -> list[Row]:
    """Time runs of a line of generations, sync and async, on an owned and a borrowed engine."""
    graph = line_graph(nodes)
    with (
        Accelerator(engines={ENGINE: NoOpEngine()}) as owned,
        Accelerator(engines={ENGINE: answer_nothing}) as borrowed,
    ):
        sync = alternate(
            timed(lambda _: owned.run(graph, input="?")),
            timed(lambda _: borrowed.run(graph, input="?")),
            runs,
            warm_up,
        )

        async def measure_async() -> Pairs[float]:
            return await alternate_async(
                timed_async(lambda _: owned.arun(graph, input="?")),
                timed_async(lambda _: borrowed.arun(graph, input="?")),
                runs,
                warm_up,
            )

        coroutines = asyncio.run(measure_async())
    return [
        row_of(system, f"{nodes}-node RAGraph, {call}", "latency_ms", times)
        for call, pairs in (("run", sync.map(in_ms)), ("arun", coroutines.map(in_ms)))
        for system, times in (("owned engine", pairs.plain), ("borrowed engine", pairs.other))
    ]
