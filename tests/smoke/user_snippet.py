"""Use the package as its users do; type-checked against the installed wheel, then run."""

from __future__ import annotations

import asyncio
from typing import assert_type

from core_snippet import misspelt_option, run_graph
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator, Options, shutdown


def build() -> Runnable[str, str]:
    """Return an ordinary chain."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    store.add_documents([Document("The bridge opened in 1932."), Document("It spans the harbour.")])
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    model = FakeListChatModel(responses=["In 1932."])
    retriever = store.as_retriever(search_kwargs={"k": 1})
    asked = {"context": retriever, "question": RunnablePassthrough[str]()}
    return asked | prompt | model | StrOutputParser()


def main() -> None:
    """Run the chain plainly and accelerated, and fail if anything differs."""
    plain = build()
    question = "When did the bridge open?"
    expected = plain.invoke(question)
    options = Options.load(max_batch=32, strict=True)
    with Accelerator(options=options) as accelerator:
        fast = accelerate(plain, accelerator=accelerator)
        assert_type(fast, Runnable[str, str])
        assert fast.invoke(question) == expected
        assert asyncio.run(fast.ainvoke(question)) == expected
        assert "".join(fast.stream(question)) == expected
        model = accelerate(FakeListChatModel(responses=["yes"]), accelerator=accelerator)
        assert_type(model, FakeListChatModel)
        assert isinstance(model, FakeListChatModel)
        with activate(accelerator) as active:
            assert_type(active, Accelerator)
            assert plain.invoke(question) == expected
        assert_type(accelerator.bypassed, dict[tuple[str, str], int])
        assert not accelerator.bypassed
    run_graph()
    assert misspelt_option().code == "RA100"
    shutdown()


if __name__ == "__main__":
    main()
    print("ok")
