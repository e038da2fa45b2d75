"""What ``explain`` says of LlamaIndex objects and of their parts."""

from __future__ import annotations

from typing import Any

import pytest
from li_off_loop import knowing
from li_programs import CHAT_ENGINES, QUERY_ENGINES, Parts
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import SimpleVectorStore
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

from llama_index_rag_accel import RagAccelVectorStore, accelerate, explain
from rag_accel import Accelerator


class OneStep(Workflow):
    """A workflow of the user's that holds a model and a tool."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.model = parts.llm
        self.tools = {"engine": QueryEngineTool.from_defaults(parts.engine())}

    @step
    async def answer(self, event: StartEvent) -> StopEvent:
        """Ask the model."""
        return StopEvent(result=await self.model.acomplete("x"))


def _pipeline(parts: Parts) -> Any:
    return IngestionPipeline(transformations=[SentenceSplitter(), parts.embedding])


#: programs, and of each what must be found at which path
PROGRAMS: dict[str, tuple[Any, list[str]]] = {
    "query engine": (
        QUERY_ENGINES["postprocessed"],
        [
            "program.retriever: VectorIndexRetriever: borrowed",
            "program.retriever.embed_model: HashEmbedding: borrowed",
            "program.retriever.vector_store: SimpleVectorStore: recognised store",
            "program.response_synthesizer.llm: EchoLLM: borrowed",
            "program.node_postprocessors.0: SimilarityPostprocessor: borrowed",
        ],
    ),
    "transformed": (QUERY_ENGINES["hyde"], ["program.query_transform.llm: EchoLLM: borrowed"]),
    "fusion": (
        QUERY_ENGINES["fusion"],
        [
            "program.retriever: QueryFusionRetriever: runs plainly",
            "program.retriever.retrievers.1: VectorIndexRetriever: borrowed",
        ],
    ),
    "chat engine": (CHAT_ENGINES["context"], ["program.llm: EchoLLM: borrowed"]),
    "retriever": (
        lambda parts: parts.index().as_retriever(),
        ["program: VectorIndexRetriever: borrowed"],
    ),
    "index": (
        Parts.index,
        [
            "program: VectorStoreIndex: what it makes",
            "program.embed_model: HashEmbedding: borrowed",
        ],
    ),
    "pipeline": (_pipeline, ["program.transformations.1: HashEmbedding: borrowed"]),
    "workflow": (
        OneStep,
        [
            "program: OneStep: runs plainly around its leaves, each call or run",
            "program.model: EchoLLM: borrowed",
            "program.tools.engine.query_engine.retriever: VectorIndexRetriever: borrowed",
        ],
    ),
    "llm": (lambda parts: parts.llm, ["program: EchoLLM: borrowed"]),
    "embedding": (lambda parts: parts.embedding, ["program: HashEmbedding: borrowed"]),
    "postprocessor": (
        lambda parts: SimilarityPostprocessor(),
        ["program: SimilarityPostprocessor: borrowed"],
    ),
    "store": (lambda parts: SimpleVectorStore(), ["program: SimpleVectorStore: recognised store"]),
}


@pytest.mark.parametrize(("make", "wanted"), PROGRAMS.values(), ids=PROGRAMS)
def test_each_part_is_named_with_how_it_runs(
    make: Any, wanted: list[str], accelerator: Accelerator
) -> None:
    said = explain(accelerate(make(Parts()), accelerator=accelerator))
    lines = [line.strip() for line in said.splitlines()]
    for one in wanted:
        assert sum(line.startswith(one) for line in lines) == 1


def test_a_method_that_blocks_its_loop_is_named_with_what_is_unknown() -> None:
    with knowing() as accelerator:
        said = explain(accelerate(QUERY_ENGINES["hyde"](Parts()), accelerator=accelerator))
    assert "TransformQueryEngine._aquery blocks its loop: li_programs.EchoLLM is not" in said


def test_a_component_of_ours_is_named_as_one(accelerator: Accelerator) -> None:
    store = RagAccelVectorStore(accelerator=accelerator)
    assert "RagAccelVectorStore: a component of this library" in explain(store)
