"""A graph's stages and a chain's model are one engine: what one computed of a text both take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from lc_reuse_programs import TEXTS, Orders, joined
from reuse_kit import num_tokens

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator
from rag_accel.engine_api import Document
from rag_accel.engines import LocalLLM
from rag_accel.graph import END, START, RAGraph

SYSTEM = "Answer by the documents."


def tokens() -> int:
    return num_tokens(*TEXTS.values())


def search(query: str, k: int) -> list[Document]:
    return [Document(name, TEXTS[name]) for name in query]


def rerank(query: str, texts: Sequence[str]) -> list[float]:
    """Prefer the documents that the query names first."""
    return [-float(query.index(name)) for text in texts for name in TEXTS if TEXTS[name] == text]


def graph() -> RAGraph:
    made = RAGraph(("input",))
    made.add_retrieval("search", query="input", top_k=3, output="found")
    made.add_rerank("rank", query="input", documents="found", top_n=3, output="docs")
    made.add_generation(
        "answer",
        system=SYSTEM,
        prompt="{docs}\n\nWhich document says {input}?",
        output="answer",
        max_tokens=4,
    )
    made.add_edge(START, "search").add_edge("search", "rank").add_edge("rank", "answer")
    return made.add_edge("answer", END)


def chain(accelerator: Accelerator) -> Any:
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("user", "{context}\n\nWhich document says {question}?")]
    )
    model = ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), max_tokens=4)
    made = {"context": Orders() | joined, "question": RunnablePassthrough()} | prompt | model
    return accelerate(made, accelerator=accelerator)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    llm = LocalLLM(tiny_chat.model(), tokenizer(), kv_reuse="full")
    with Accelerator(llm=llm, index=search, reranker=rerank, strict=True) as made:
        yield made


def test_a_chain_takes_a_graphs_chunks_on_the_same_engine(accelerator: Accelerator) -> None:
    accelerator.run(graph(), input="abc")
    asked = chain(accelerator)
    answer = asked.invoke("cab")
    assert answer.response_metadata["kv_reuse"]["reused_tokens"] == tokens()
    assert [one.name for one in accelerator.health().parts].count("llm") == 1
    assert "ChatRagAccel: engine llm" in asked.explain()
    assert "llm: owned" in accelerator.explain(graph())


def test_a_component_may_hold_the_object_and_name_other_bounds() -> None:
    llm = LocalLLM(tiny_chat.model(), tokenizer(), kv_reuse="full")
    with Accelerator(llm=llm, index=search, reranker=rerank, strict=True) as accelerator:
        accelerator.run(graph(), input="abc")
        same = ChatRagAccel(model=llm, max_tokens=4, accelerator=accelerator)
        other = ChatRagAccel(model=llm, max_tokens=4, kv_reuse="exact", accelerator=accelerator)
        assert same.invoke("Which document?").response_metadata["kv_reuse"]["mode"] == "full"
        assert "kv_reuse" not in other.invoke("Which document?").response_metadata
        names = [one.name for one in accelerator.health().parts]
    assert names.count("llm") == 1
    assert len([name for name in names if name.startswith("llm")]) == 2
