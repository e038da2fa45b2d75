"""What is done for the engines of a graph before its first request."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from accel_harness import PATIENCE_S, opened

from rag_accel import END, START, Accelerator, ClosedError, EngineError, GraphError, RAGraph
from rag_accel.engine_api import GenerationInput, PrimitiveKind, TextBatch
from rag_accel.testing import FAKE_PROFILE, FakeEngine
from rag_accel.testing.faults import Faults

ASKED = GenerationInput(())
EMBEDDED = TextBatch(("a sample",))


def generating() -> FakeEngine:
    return FakeEngine(replace(FAKE_PROFILE, samples=((PrimitiveKind.DECODING, ASKED),)))


def embedding(**more: object) -> FakeEngine:
    return FakeEngine(
        replace(FAKE_PROFILE, samples=((PrimitiveKind.EMBEDDING, EMBEDDED),)),
        **more,  # pyright: ignore[reportArgumentType]
    )


class GatedEngine(FakeEngine):
    """An engine that begins its first step at once, and ends it when a test lets it."""

    def __init__(self) -> None:
        super().__init__(replace(FAKE_PROFILE, samples=((PrimitiveKind.DECODING, ASKED),)))
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def step(self, budget):
        self.has_begun.set()
        self.may_go.wait(PATIENCE_S)
        return super().step(budget)


def asking() -> RAGraph:
    return RAGraph().add_generation("a", "{input}").add_edge(START, "a").add_edge("a", END)


def payloads(engine: FakeEngine) -> list[object]:
    return [request.payload for batch in engine.served for request in batch]


def test_engines_of_the_graph_run_their_samples_and_others_none() -> None:
    llm, embedder = generating(), embedding()
    with opened(llm=llm, embedder=embedder) as acc:
        assert acc.prepare(asking())
        assert set(map(type, payloads(llm))) == {GenerationInput}
        assert all(payload == ASKED for payload in payloads(llm))
        assert payloads(embedder) == []


def test_an_engine_without_a_sample_and_a_callable_are_left_alone() -> None:
    called: list[str] = []
    llm = FakeEngine()
    with opened(llm=llm) as acc:
        assert acc.prepare(asking())
    with opened(llm=called.append) as acc:
        assert acc.prepare(asking())
    assert payloads(llm) == called == []


def test_what_is_not_ready_in_time_is_said() -> None:
    gated = GatedEngine()
    with opened(llm=gated) as acc:
        assert not acc.prepare(asking(), timeout_s=0.05)
        gated.may_go.set()


def test_health_says_preparing_and_embedders_wait_for_it() -> None:
    gated = GatedEngine()
    with opened(llm=gated) as acc, ThreadPoolExecutor(1) as beside:
        prepared = beside.submit(acc.prepare, asking())
        assert gated.has_begun.wait(PATIENCE_S)
        assert acc.health().state == "preparing"
        assert not acc.health().is_ready
        assert not acc.embedders.wait(0.05)
        gated.may_go.set()
        assert acc.embedders.wait(PATIENCE_S)
        assert prepared.result(PATIENCE_S)
        assert acc.health().is_ready


def test_what_an_engine_raises_for_its_sample_is_raised_and_the_accelerator_is_ready() -> None:
    embedder = embedding(faults=Faults(item=lambda request: "raise"))
    graph = RAGraph().add_retrieval("search", output="docs")
    graph.add_edge(START, "search").add_edge("search", END)
    with opened(embedder=embedder, index=FakeEngine()) as acc:
        with pytest.raises(EngineError):
            acc.prepare(graph)
        assert acc.health().is_ready


def test_a_graph_that_cannot_run_is_refused() -> None:
    with opened(llm=generating()) as acc, pytest.raises(GraphError):
        acc.prepare(RAGraph().add_generation("a", "{input}", engine="nobody").add_edge(START, "a"))


def test_a_closed_accelerator_prepares_nothing() -> None:
    acc = Accelerator(llm=generating())
    acc.close()
    with pytest.raises(ClosedError):
        acc.prepare(asking())


def test_an_end_in_mid_preparation_ends_it() -> None:
    gated = GatedEngine()
    acc = Accelerator(llm=gated, shutdown_s=0.1)
    with ThreadPoolExecutor(1) as beside:
        prepared = beside.submit(acc.prepare, asking())
        assert gated.has_begun.wait(PATIENCE_S)
        acc.close()
        with pytest.raises(ClosedError):
            prepared.result(PATIENCE_S)
        gated.may_go.set()
    assert not acc.embedders.preparations.are_running


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from rag_accel import END, START, Accelerator, RAGraph
graph = RAGraph().add_generation("a", "{input}").add_edge(START, "a").add_edge("a", END)
with Accelerator(llm=lambda prompt: "said") as accelerator:
    assert accelerator.prepare(graph)
    print(accelerator.run(graph, input="x"))
"""


def test_it_needs_no_torch() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, timeout=120)
    assert run.stdout.split() == [b"said"], run.stderr
