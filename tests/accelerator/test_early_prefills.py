"""Early beginnings change no answer, whatever the values of a request are."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from accel_harness import PATIENCE_S, opened, reply

from rag_accel import END, START, EngineError, RAGraph
from rag_accel.engine_api import EngineRequest, PrimitiveKind
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults

LONG = "The earlier turns of this conversation. " * 20


def graph() -> RAGraph:
    made = RAGraph(["input", "history"])
    made.add_function("search", Search(), "input", "text")
    made.add_generation("answer", prompt="{history} {text}")
    return made.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


class Search:
    """A function of the user's that ends once it may."""

    gate: threading.Event | None = None

    def __call__(self, query: str) -> str:
        assert self.gate is None or self.gate.wait(PATIENCE_S)
        return f"about {query}"


class Watched(FakeEngine):
    """An engine that tells what it was asked for, and when it has ended something."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(FAKE_PROFILE, **parts)
        self.asked: list[tuple[PrimitiveKind, str, str]] = []
        self.over = threading.Event()

    def submit(self, work: Any) -> None:
        for one in work:
            self.asked.append((one.kind, one.namespace, one.payload.messages[-1].content))
        super().submit(work)

    def step(self, budget: Any) -> Any:
        try:
            return super().step(budget)
        finally:
            self.over.set()

    def early(self) -> list[str]:
        return [text for kind, _, text in self.asked if kind is PrimitiveKind.PARTIAL_PREFILLING]


def held_back(engine: Watched, made: RAGraph) -> RAGraph:
    """Let the user's function wait until the engine has ended something."""
    Search.gate = engine.over
    return made


@pytest.fixture(autouse=True)
def open_gate() -> Any:
    yield
    Search.gate = None


def counts(accelerator: Any) -> dict[str, Any]:
    found = accelerator.metrics.snapshot()
    return {name: value for name, value in found.items() if name.startswith("early_")}


def test_a_beginning_is_prefilled_while_the_user_s_function_runs() -> None:
    engine = Watched()
    with opened(llm=engine) as acc:
        text = acc.run(held_back(engine, graph()), input="x", history=LONG)
        assert text == reply(f"{LONG} about x")
        assert engine.early() == [f"{LONG} "]
        assert counts(acc) == {"early_hits": {"answer": 1}}


def broken(request: EngineRequest) -> Any:
    """Let beginnings fail, and nothing else."""
    is_early = request.kind is PrimitiveKind.PARTIAL_PREFILLING
    return EngineError("broken") if is_early else None


def test_an_error_of_it_concerns_nobody() -> None:
    engine = Watched(faults=Faults(item=broken))
    with opened(llm=engine) as acc:
        text = acc.run(held_back(engine, graph()), input="x", history=LONG)
        assert text == reply(f"{LONG} about x")
        assert engine.early() == [f"{LONG} "]


def test_a_history_that_changes_meanwhile_is_a_miss() -> None:
    engine = Watched()
    history = [LONG]

    def search(query: str, history: list[str]) -> str:
        assert engine.over.wait(PATIENCE_S)
        history[0] = "another " + LONG
        return "found"

    made = RAGraph(["input", "history"])
    made.add_function("search", search, ["input", "history"], "text")
    made.add_generation("answer", prompt="{history} {text}")
    made.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    with opened(llm=engine) as acc:
        assert acc.run(made, input="x", history=history) == reply(f"another {LONG} found")
        assert counts(acc)["early_misses"] == {"answer": 1}


class Shown:
    """A value of the user's that tells how often it was written."""

    def __init__(self) -> None:
        self.written = 0

    def __str__(self) -> str:
        self.written += 1
        return LONG


def test_code_of_the_user_s_does_not_run_for_it() -> None:
    engine, shown = Watched(), Shown()
    with opened(llm=engine) as acc:
        assert acc.run(graph(), input="x", history=shown) == reply(f"{LONG} about x")
    assert shown.written == 1
    assert engine.early() == []


def test_it_is_of_the_tenant_s_namespace() -> None:
    engine = Watched()
    with opened(llm=engine, namespace="one") as acc:
        acc.run(held_back(engine, graph()), input="x", history=LONG)
    assert {namespace for _, namespace, _ in engine.asked} == {"one"}


def test_a_failed_request_leaves_nothing_behind() -> None:
    engine = Watched()

    def fail(query: str) -> str:
        assert engine.over.wait(PATIENCE_S)
        raise ValueError("no store")

    made = RAGraph(["input", "history"])
    made.add_function("search", fail, "input", "text")
    made.add_generation("answer", prompt="{history} {text}")
    made.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    with opened(llm=engine) as acc:
        with pytest.raises(ValueError, match="no store"):
            acc.run(made, input="x", history=LONG)
        assert counts(acc) == {"early_misses": {"answer": 1}}
    assert engine.live_handles == frozenset()


@pytest.mark.parametrize("passes", ["none", "prune_dependencies,join_prefill"])
def test_it_can_be_switched_off(passes: str) -> None:
    engine = Watched()
    with opened(llm=engine, passes=passes) as acc:
        acc.run(graph(), input="x", history=LONG)
        assert engine.early() == []
        assert counts(acc) == {}
