"""A workflow and a query engine, as they are and accelerated, by one accelerator for both."""

from __future__ import annotations

from typing import Any

from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

TEXTS = ["The bridge opened in 1932.", "The ferry takes nine minutes."]


class Found(Event):
    texts: list[str]


class Asking(Workflow):
    """Search, then answer; each event goes to the stream too."""

    def __init__(self, index: VectorStoreIndex, **options: Any) -> None:
        super().__init__(**options)
        self.retriever = index.as_retriever(similarity_top_k=2)
        self.llm = MockLLM()

    @step
    async def search(self, context: Context, event: StartEvent) -> Found:
        nodes = await self.retriever.aretrieve(str(event.get("question")))
        found = Found(texts=sorted(node.text for node in nodes))
        context.write_event_to_stream(found)
        return found

    @step
    async def answer(self, event: Found) -> StopEvent:
        return StopEvent(result=str(await self.llm.acomplete(" ".join(event.texts))))


index = VectorStoreIndex.from_documents(
    [Document(text=text) for text in TEXTS], embed_model=MockEmbedding(embed_dim=8)
)
accelerator = Accelerator()
plain = Asking(index)
fast = accelerate(Asking(index), accelerator=accelerator)
engine = accelerate(index.as_query_engine(llm=MockLLM()), accelerator=accelerator)
