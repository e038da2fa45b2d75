"""Build a conversational RAG chain in LCEL, fresh with every call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnablePassthrough

from bench.unbatched.leaves import LeafCalls, new_retriever, rewritten, text_model, written
from bench.unbatched.program import Program


def conversational_rag() -> Program:
    """Return a chain that makes a later question stand alone before it searches; two questions."""
    calls = LeafCalls()
    retriever = new_retriever(calls)
    rephrase = (
        _prompt("Make this question stand alone:\n{question}")
        | text_model(rewritten, calls)
        | StrOutputParser()
    )
    search = RunnableBranch(
        (itemgetter("history"), rephrase | retriever), itemgetter("question") | retriever
    )
    chain = (
        RunnablePassthrough.assign(context=search | _joined)
        | _prompt("Answer from these:\n{context}\n{question}")
        | text_model(written, calls)
        | StrOutputParser()
    )
    return Program("conversational RAG, LCEL", chain, _turns, str, calls)


def _prompt(asked: str) -> ChatPromptTemplate:
    return ChatPromptTemplate([("placeholder", "{history}"), ("human", asked)])


def _joined(documents: Sequence[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


def _turns(question: str) -> list[dict[str, Any]]:
    history = [("human", question), ("ai", "The guide tells that.")]
    return [
        {"question": question, "history": []},
        {"question": "And how was it in the year before?", "history": history},
    ]
