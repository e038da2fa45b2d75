"""The meter tells what LangChain saw apart from what the scheduler saw."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableLambda
from lc_fakes import FakeEmbeddings, FakeLLM, SyncRetriever
from lc_programs import ensemble, model_chain

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import CoverageRow, coverage
from rag_accel import Accelerator

INPUT = {"input": "question one"}


def test_calls_that_wait_for_their_turn_are_told_apart() -> None:
    with Accelerator(strict=True, max_requests=1) as accelerator:
        fast = accelerate(model_chain(), accelerator=accelerator)
        with coverage() as meter:
            fast.invoke(INPUT)
    assert meter.rows() == [CoverageRow("chat model", 1, 1, 0)]


def test_a_retriever_of_retrievers_is_not_counted(accelerator: Accelerator) -> None:
    fast = accelerate(ensemble(), accelerator=accelerator)
    with coverage() as meter:
        fast.invoke(INPUT)
    assert meter.rows() == [CoverageRow("retriever", 2, 0, 2)]


def test_each_prompt_of_a_completion_model_counts(accelerator: Accelerator) -> None:
    with coverage() as meter:
        accelerate(FakeLLM(), accelerator=accelerator).generate(["one", "two", "three"])
    assert meter.rows() == [CoverageRow("language model", 3, 0, 3)]


def test_the_report_names_what_was_borrowed_and_what_passed_by(accelerator: Accelerator) -> None:
    fast = accelerate(SyncRetriever(), accelerator=accelerator)
    with coverage() as meter:
        fast.invoke("x")
        SyncRetriever().invoke("x")
    head, *lines = str(meter).splitlines()
    assert head.startswith("calls: 0 scheduled (queued on an owned engine), 1 borrowed")
    assert head.endswith("1 passed by")
    method = "SyncRetriever._get_relevant_documents"
    assert lines == [
        f"  {method}: 1 borrowed",
        f"  {method}: 1 passed by: outside of an accelerated program and of activate()",
    ]


def test_a_bound_method_taken_before_anything_was_accelerated_passes_by(
    accelerator: Accelerator,
) -> None:
    class Own(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            return [float(len(text))]

    embeddings = Own()
    program = RunnableLambda(embeddings.embed_query)
    fast = accelerate(program, accelerator=accelerator)
    assert fast.invoke("x") == embeddings.embed_query("x")
    assert sum(len(cells) for cells in _engines(accelerator).values()) == 0


def _engines(accelerator: Accelerator) -> dict[str, Any]:
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return {name: cells for name, cells in found.items() if cells["steps"]}
