"""Offer a RAGraph whose engines do nothing, so that what is left of a run is scheduling."""

from __future__ import annotations

from collections.abc import Sequence

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
    """End every DECODING work in the next step with one fixed word."""

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
