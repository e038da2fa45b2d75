"""A chain over a server: the texts of its second order are loaded, not computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_accel.kv.reuse_request import ReuseRequest

DOCUMENTS = [
    "The river Aare rises in the glaciers of the Bernese Alps and flows through Thun and Bern.",
    "The clock tower of Bern was built in the thirteenth century and served as its western gate.",
    "Lake Thun was formed after the last ice age; steamers have crossed it since the year 1835.",
]
SYSTEM = "Answer by the context and nothing else. Say that you do not know where it is silent."


def test_second_order_of_texts_is_loaded(server: str, models: Path) -> None:
    """Every token of the texts comes from the folder once they were seen in another order."""
    pytest.importorskip("langchain_openai")
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("user", "{context}\n\nQuestion: {question}")]
    )

    def ask(documents: list[str], question: str) -> dict[str, int]:
        wanted = ReuseRequest("full", tuple(documents), before="")
        model = ChatOpenAI(
            model="tiny",
            base_url=server,
            api_key="none",
            max_tokens=4,
            temperature=0,
            extra_body=wanted.fields(),
        )
        context = "\n\n".join(documents)
        answer = (prompt | model).invoke({"context": context, "question": question})
        return answer.response_metadata["token_usage"]["prompt_tokens_details"]

    first = ask(DOCUMENTS, "Where does the Aare rise?")
    assert first is not None
    second = ask(DOCUMENTS[::-1], "What crosses the lake?")
    texts = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in DOCUMENTS)
    assert second["cached_tokens"] >= texts
