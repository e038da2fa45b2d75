"""Chains over relation paths compute them as trees, and none twice."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from graph_facts import facts
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from lc_graphs import WordEmbeddings
from path_kit import QUESTIONS, RelationPaths

from langchain_rag_accel import ChatRagAccel, RagAccelGraphRetriever, accelerate, explain
from rag_accel import Accelerator

PATHS = (
    "Ada Lovelace -> wrote to -> Charles Babbage",
    "Ada Lovelace -> admired -> Mary Somerville",
    "Ada Lovelace -> wrote to -> Charles Babbage -> designed -> the Analytical Engine",
    "Mary Somerville -> taught -> Ada Lovelace",
)
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer by these."), ("user", "Facts:\n{context}\n\nQuestion: {question}")]
)


class Lines(BaseRetriever):
    """Returns a document for each path."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(path) for path in PATHS]


def numbered(documents: list[Document]) -> str:
    return "\n".join(f"[{at}] {one.page_content}" for at, one in enumerate(documents, 1))


def chain(found: Any, **options: Any) -> Any:
    given = {"kv_reuse": "dependency", "max_tokens": 6, "pool_bytes": 1 << 24, **options}
    model = ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), **given)
    return {"context": found | numbered, "question": RunnablePassthrough()} | PROMPT | model


class ChainOverPaths(RelationPaths):
    def retriever(self) -> Any:
        raise NotImplementedError

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        return accelerate(chain(self.retriever(), **options), accelerator=accelerator)

    def behind(self, question: str) -> str:
        return f"\nQuestion: {question}"

    def ask(self, program: Any, question: str) -> str:
        return program.invoke(question).content

    async def aask(self, program: Any, question: str) -> str:
        return (await program.ainvoke(question)).content

    def stream(self, program: Any, question: str) -> str:
        return "".join(piece.content for piece in program.stream(question))

    async def astream(self, program: Any, question: str) -> str:
        return "".join([piece.content async for piece in program.astream(question)])


class TestDocuments(ChainOverPaths):
    def retriever(self) -> Any:
        return Lines()


class TestGraphRetriever(ChainOverPaths):
    def retriever(self) -> Any:
        return RagAccelGraphRetriever(graph=facts(), embedding=WordEmbeddings(), link="words", k=50)


@pytest.mark.parametrize("mode", ["auto", "translate"])
def test_an_answer_says_how_its_paths_were_computed(mode: Any) -> None:
    with Accelerator(strict=True, mode=mode) as accelerator:
        program = accelerate(chain(Lines()), accelerator=accelerator)
        first, second = (program.invoke(question) for question in QUESTIONS[:2])
    report = first.response_metadata["kv_reuse"]
    tree = report["tree_tokens"]
    assert tree > 0
    assert report["attention"] == "dependency"
    assert report["reused_tokens"] == 0
    assert not report["exact"]
    assert second.response_metadata["kv_reuse"] == {**report, "reused_tokens": tree}
    assert second.usage_metadata["input_token_details"]["cache_read"] > tree


def test_an_explanation_says_what_paths_are_computed_as(accelerator: Accelerator) -> None:
    fast = accelerate(chain(Lines()), accelerator=accelerator)
    assert "kv_reuse is dependency" in explain(fast)
