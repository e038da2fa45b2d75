"""Runs, tenants, loops and edits around the retriever of a knowledge graph's paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from graph_facts import CHAIN, QUESTION, Gathering, facts
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from lc_graphs import retriever, texts

from langchain_rag_accel import accelerate, explain
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator, ConfigError
from rag_accel.accelerator import current_request
from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import DeadlineError

EXPANDING = PrimitiveKind.EXPANDING


class Events(BaseCallbackHandler):
    """Names of what a retriever told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self.told.append("start")

    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:
        self.told.append(f"end {len(documents)}")

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.told.append(type(error).__name__)


async def test_callbacks_are_a_retrievers(accelerator: Accelerator) -> None:
    for way in ("invoke", "ainvoke"):
        events = Events()
        found = getattr(retriever(accelerator, k=3), way)(QUESTION, {"callbacks": [events]})
        assert len(await found if way == "ainvoke" else found) == 3
        assert events.told == ["start", "end 3"]
    with pytest.raises(ConfigError):
        retriever(accelerator).invoke(QUESTION, {"callbacks": [events]}, k=-1)
    assert events.told[2:] == ["start", "ConfigError"]


async def test_it_is_part_of_the_accelerated_run_that_calls_it(accelerator: Accelerator) -> None:
    made = retriever(k=1)
    seen: list[Any] = []

    def remember(found: list[Document]) -> list[str]:
        run = current_request.get()
        assert run is not None
        seen.append(
            (run.accelerator, [text for _, text in run.retrieved.texts()], run.retrieved.asked)
        )
        return texts(found)

    fast = accelerate(made | RunnableLambda(remember), accelerator=accelerator)
    with coverage() as meter:
        assert fast.invoke(QUESTION) == [CHAIN]
        assert await fast.ainvoke(QUESTION) == [CHAIN]
    assert meter.passed_by == 0
    assert {row.kind: row.queued for row in meter.rows()}["retriever"] == 2
    assert seen == [(accelerator, [CHAIN], {QUESTION})] * 2
    assert accelerator.engine_of(made.graph) is not None


def test_a_run_that_is_too_late_waits_for_no_hop() -> None:
    engine = Gathering(facts(), 2, EXPANDING)  # which never has two
    with (
        Accelerator(graph=engine, strict=True, deadline_s=0.5) as accelerator,
        pytest.raises(DeadlineError),
    ):
        retriever(accelerator, graph=engine).invoke(QUESTION)


async def test_an_explanation_names_the_component_and_its_engine() -> None:
    graph = facts()
    with Accelerator(graph=graph, strict=True) as accelerator:
        made = retriever(graph=graph)
        fast = accelerate(made | RunnableLambda(texts), accelerator=accelerator)
        (line,) = [one for one in explain(fast).splitlines() if "GraphRetriever: " in one]
        assert "RagAccelGraphRetriever: engine graph: paths of a MemoryGraph" in line
        own = retriever()
        assert "of its own" in own.explain_on(accelerator)
        own.scheduled_by(accelerator).invoke(QUESTION)
        assert "of its own" in own.explain_on(accelerator)  # which left with its only holder


def test_the_switch_turns_the_scheduler_off_but_no_retriever(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator
) -> None:
    monkeypatch.setenv("RAG_ACCEL", "0")
    assert texts(retriever(accelerator, k=1).invoke(QUESTION)) == [CHAIN]
