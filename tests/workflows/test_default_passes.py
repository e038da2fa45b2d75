"""The passes that act by default on workflows as they come, and results that no pass changes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from idle_accelerators import soon_idle
from workflow_harness import PATIENCE_S, ready_made

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Capability, GenerationInput, GenerationOutput, LatencyModel
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive
from rag_accel.passes.manager import STATIC_PASSES
from rag_accel.requests.plan import GraphPlan, Region
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults, compute

#: all but the pass that the paper does not have
PAPER = {static.name for static in STATIC_PASSES} - {"join_prefill"} | {"early_prefill"}

#: an engine of this process, and a server that streams: what their profiles say in use
LOCAL = replace(FAKE_PROFILE, max_threads=2, pure=False)
SERVER = replace(
    FAKE_PROFILE,
    kinds=frozenset({PrimitiveKind.DECODING}),
    max_threads=0,
    capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
)
_LATENCIES = {"embedder": (0.004, 0.003), "index": (0.0002, 0.0003), "reranker": (0.018, 0.0115)}


def write(payload: Any) -> Any:
    """Reply with a list of lines, the first of which the prompt decides."""
    if not isinstance(payload, GenerationInput):
        return compute(payload)
    prompt = payload.messages[-1].content
    return GenerationOutput(f"about {sum(map(ord, prompt))}\nand {len(prompt)}\nand the rest")


def fail(request: Any) -> Exception | None:
    return LookupError("no documents") if request.kind is PrimitiveKind.RERANKING else None


@contextmanager
def opened(
    llm: Any = SERVER, passes: str = "default", faults: Faults | None = None
) -> Iterator[Accelerator]:
    engines: dict[str, FakeEngine] = {"llm": FakeEngine(llm, steps=6, compute=write)}
    for name, known in _LATENCIES.items():
        profile = replace(
            FAKE_PROFILE,
            max_threads=2,
            latency=LatencyModel(*known),
            capabilities=frozenset({Capability.ITEMWISE}),
        )
        engines[name] = FakeEngine(profile, faults=faults)
    with Accelerator(passes=passes, engines=engines) as accelerator:
        yield accelerator
        assert soon_idle(accelerator)


def acting(accelerator: Accelerator, graph: RAGraph) -> set[str]:
    """Return the passes of the paper that ``explain`` names for what they changed."""
    lines = accelerator.explain(graph, "e-graph").partition("\npasses:\n")[2].split("\n")
    told = (line.strip().partition(": ") for line in lines)
    idle = ("nothing to change", "off, ")
    return {name for name, _, what in told if name in PAPER and not what.startswith(idle)}


@pytest.mark.parametrize(("llm", "least"), [(LOCAL, 10), (SERVER, 8)], ids=["local", "server"])
def test_passes_of_the_paper_act_on_workflows_as_they_come(llm: Any, least: int) -> None:
    with opened(llm) as accelerator:
        found = {name: acting(accelerator, graph) for name, graph in ready_made().items()}
    assert len(found) == 18
    assert sum(map(bool, found.values())) >= least, found
    overlapping = {"pipeline_decoding", "rerank_by_source"}
    for name, passes in found.items():
        expected = overlapping if llm is SERVER and name.startswith("advanced") else set[str]()
        assert passes & overlapping == expected, name


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


def answers(accelerator: Accelerator, graphs: Mapping[str, RAGraph]) -> dict[str, Any]:
    """Return each graph's result and sources, or its error."""
    found: dict[str, Any] = {}
    for name, graph in graphs.items():
        given: dict[str, Any] = {"input": "why"}
        if "documents" in graph.freeze().inputs:
            given["documents"] = ["A passage."]
        sources = {str(stage.output) for stage in graph.freeze().stages} & {"docs", "found"}
        for outputs in (None, sorted(sources)):
            run = functools.partial(accelerator.run, graph, outputs=outputs, **given)
            found[f"{name}, {outputs}"] = outcome(run)
    return found


@contextmanager
def company(accelerator: Accelerator) -> Iterator[None]:
    """Let another request live."""
    entered, left = threading.Event(), threading.Event()

    def wait(text: str) -> None:
        entered.set()
        assert left.wait(PATIENCE_S)

    waiting = RAGraph().add_function("wait", wait, inputs="input").add_edge(START, "wait")
    handle = accelerator.submit(waiting.add_edge("wait", END), input="")
    assert entered.wait(PATIENCE_S)
    try:
        yield
    finally:
        left.set()
        handle.result(PATIENCE_S)


def kinds(graph: RAGraph) -> list[set[PrimitiveKind]]:
    """Return the kinds of primitives of each plan that is kept with a graph."""
    (plans,) = graph.freeze().made.values()
    return [{primitive.kind for primitive in _primitives(plan.start())} for plan in plans.values()]


def _primitives(region: Region) -> Iterator[Primitive]:
    yield from region.primitives
    for then in region.then.values():
        yield from _primitives(then)


@pytest.mark.parametrize("faults", [None, Faults(fail)], ids=["done", "failed"])
def test_texts_sources_and_errors_are_equal_alone_in_company_and_without_passes(
    faults: Faults | None,
) -> None:
    with opened(passes="none", faults=faults) as accelerator:
        expected = answers(accelerator, ready_made())
    graphs = ready_made()
    with opened(faults=faults) as accelerator:
        assert answers(accelerator, graphs) == expected
        with company(accelerator):
            assert answers(accelerator, graphs) == expected
        for name, graph in graphs.items():
            alone, together = kinds(graph)
            overlaps = name.startswith("advanced")
            assert (PrimitiveKind.PARTIAL_DECODING in alone) == overlaps, name
            assert PrimitiveKind.PARTIAL_DECODING not in together
    assert any("LookupError" in str(value) for value in expected.values()) == bool(faults)


def test_a_compiled_graph_is_planned_for_both_cases_beforehand() -> None:
    graph = ready_made()["advanced_document_qa, stuff, False"]
    with opened() as accelerator:
        accelerator.compile(graph)
        (plans,) = graph.freeze().made.values()
        assert len(plans) == 2
        before = list[GraphPlan](plans.values())
        accelerator.run(graph, input="why")
        assert list(plans.values()) == before
