"""Texts that a chain retrieved before are not computed again, in whatever order they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator
from rag_accel.errors import ConfigError

TEXTS = {
    "a": "The height of Mount Fuji is 3776 metres.",
    "b": "A lane holds keys and values of one sequence.",
    "c": "The guide said which of the documents it is.",
}
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer by the documents."),
        ("user", "{context}\n\nWhich document says {question}?"),
    ]
)


class Orders(BaseRetriever):
    """Returns the documents that a query names, in its order."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(id=name, page_content=TEXTS[name]) for name in query]


def joined(documents: list[Document]) -> str:
    return "\n\n".join(one.page_content for one in documents)


def tokens(*names: str) -> int:
    texts = [TEXTS[name] for name in names]
    return sum(len(tokenizer()(one, add_special_tokens=False)["input_ids"]) for one in texts)


def chat(accelerator: Accelerator, **options: Any) -> ChatRagAccel:
    return ChatRagAccel(
        model=tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        accelerator=accelerator,
        **options,
    )


def build(accelerator: Accelerator, **options: Any) -> Any:
    chain = (
        {"context": Orders() | joined, "question": RunnablePassthrough()}
        | PROMPT
        | chat(accelerator, **options)
    )
    return accelerate(chain, accelerator=accelerator)


def reused(message: AIMessage) -> int:
    return message.response_metadata["kv_reuse"]["reused_tokens"]


@pytest.fixture
def accelerator() -> Any:
    with Accelerator() as made:
        yield made


def test_the_second_order_computes_no_text(accelerator: Accelerator) -> None:
    chain = build(accelerator, kv_reuse="full")
    assert reused(chain.invoke("abc")) == 0
    second = chain.invoke("cab")
    assert reused(second) == tokens("a", "b", "c")
    assert second.usage_metadata["input_token_details"]["cache_read"] >= tokens("a", "b", "c")
    assert second.response_metadata["kv_reuse"]["mode"] == "full"


async def test_a_chain_on_a_loop_does_so(accelerator: Accelerator) -> None:
    chain = build(accelerator, kv_reuse="full")
    await chain.ainvoke("ab")
    assert reused(await chain.ainvoke("ba")) == tokens("a", "b")


def test_a_streamed_chain_does_so(accelerator: Accelerator) -> None:
    chain = build(accelerator, kv_reuse="full")
    chain.invoke("ab")
    pieces = list(chain.stream("ba"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert reused(whole) == tokens("a", "b")


def test_by_default_every_prompt_is_computed(accelerator: Accelerator) -> None:
    chain = build(accelerator)
    first = chain.invoke("abc")
    assert "kv_reuse" not in first.response_metadata
    second = chain.invoke("cab")
    read = second.usage_metadata["input_token_details"]["cache_read"]
    assert second.usage_metadata["input_tokens"] - read > tokens("a", "b", "c")


def test_a_call_may_name_its_documents(accelerator: Accelerator) -> None:
    model = chat(accelerator, kv_reuse="full")
    messages = [SystemMessage("Be brief."), HumanMessage(f"{TEXTS['a']} {TEXTS['b']} Well?")]
    documents = [Document(page_content=TEXTS["a"]), TEXTS["b"]]
    model.invoke(messages, documents=documents)
    again = [SystemMessage("Be brief."), HumanMessage(f"{TEXTS['b']} {TEXTS['a']} Well?")]
    assert reused(model.invoke(again, documents=documents)) == tokens("a", "b")


@pytest.mark.parametrize("documents", ["one string", {"a": "text"}, 7])
def test_documents_that_are_no_list_are_refused(accelerator: Accelerator, documents: Any) -> None:
    model = chat(accelerator, kv_reuse="full")
    with pytest.raises(ConfigError, match="named as a list"):
        model.invoke("Well?", documents=documents)


def test_what_is_no_document_is_refused(accelerator: Accelerator) -> None:
    model = chat(accelerator, kv_reuse="full")
    with pytest.raises(ConfigError, match=r"documents\[1\]"):
        model.invoke("Well?", documents=["a", 3])


def test_an_unknown_way_of_reuse_is_refused(accelerator: Accelerator) -> None:
    with pytest.raises(ValueError, match="kv_reuse"):
        chat(accelerator, kv_reuse="some")


def test_a_folder_keeps_texts_between_accelerators(tmp_path: Path) -> None:
    options = {"kv_reuse": "full", "kv_folder": str(tmp_path / "kept")}
    with Accelerator() as first:
        build(first, **options).invoke("ab")
    with Accelerator() as second:
        assert reused(build(second, **options).invoke("ba")) == tokens("a", "b")
