"""A profile of a graph says what each pass saves, and says so truly where that is known."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.engine_api import (
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationOutput,
    PrimitiveKind,
    StepBudget,
)

STEP_S = 0.1


class Slow(EngineBase):
    """Take the same time for each step, whatever it holds."""

    def __init__(self, kind: PrimitiveKind) -> None:
        self.profile = EngineProfile(
            frozenset({kind}), max_threads=0, pure=True, capabilities=frozenset({Capability.EMBEDS})
        )
        self._waiting: list[EngineRequest] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._waiting.extend(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        time.sleep(STEP_S)
        work, self._waiting = self._waiting, []
        return [EngineOutput(one.id, "final", self._value(one)) for one in work]

    def _value(self, request: EngineRequest) -> object:
        return () if request.kind is PrimitiveKind.SEARCHING else GenerationOutput("text")


def needless_line() -> RAGraph:
    """Return a graph in which a search waits for a generation that it reads nothing of."""
    graph = RAGraph().add_generation("plan", "{input}").add_retrieval("search")
    graph.add_generation("answer", "{plan} {search}")
    graph.add_edge(START, "plan").add_edge("plan", "search")
    return graph.add_edge("search", "answer").add_edge("answer", END)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    engines = {"llm": Slow(PrimitiveKind.DECODING), "index": Slow(PrimitiveKind.SEARCHING)}
    with Accelerator(engines=engines) as made:
        yield made


def test_a_saving_known_by_construction_is_told(accelerator: Accelerator) -> None:
    graph = needless_line()
    for number in range(3):
        accelerator.run(graph, input=f"question {number}")
    profile = accelerator.profile(graph)
    saved = {saving.name: saving.saved_ms for saving in profile.savings}
    assert saved.keys() == {"prune_dependencies"}
    # The generation and the search run side by side: the shorter of both is saved.
    shorter_s = [
        min(one.running_s for one in request.primitives if one.stage in ("plan", "search"))
        for request in profile.recording.done
    ]
    known_ms = 1000 * sum(shorter_s) / len(shorter_s)
    # A busy machine takes its time between two primitives, some of which counts, too.
    between_s = [
        request.ended_s - request.arrived_s + shorter - sum(p.running_s for p in request.primitives)
        for request, shorter in zip(profile.recording.done, shorter_s, strict=True)
    ]
    between_ms = 1000 * sum(between_s) / len(between_s)
    assert saved["prune_dependencies"] == pytest.approx(known_ms, abs=between_ms + 0.01)
    assert known_ms >= 1000 * STEP_S
    assert f"prune_dependencies    {saved['prune_dependencies']:.2f}" in str(profile)
    assert profile.to_dict()["savings"] == [
        {"name": "prune_dependencies", "saved_ms": saved["prune_dependencies"]}
    ]


def test_a_graph_that_no_pass_changes_has_no_savings(accelerator: Accelerator) -> None:
    graph = RAGraph().add_generation("answer", "{input}")
    graph.add_edge(START, "answer").add_edge("answer", END)
    accelerator.run(graph, input="x")
    profile = accelerator.profile(graph)
    assert profile.savings == ()
    assert "passes" not in str(profile)
    assert accelerator.profile().savings == ()


def test_a_graph_that_was_never_run_has_no_profile(accelerator: Accelerator) -> None:
    other = RAGraph().add_generation("other", "{input}")
    accelerator.run(other.add_edge(START, "other").add_edge("other", END), input="x")
    with pytest.raises(ConfigError, match="no recorded request ran any of these primitives"):
        accelerator.profile(needless_line())
