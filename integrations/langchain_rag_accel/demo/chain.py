"""Build the ordinary LangChain chain that both arms of the demo run."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_rag_accel.components.chat_models import ExtractiveChatModel
from rag_accel.engine_api import Document
from rag_accel.engines.llm.extractive.prompt import format_passages

TOP_K = 4


def build_chain(store: Any, reader: Any | None = None) -> Runnable[str, dict[str, Any]]:
    """Return question -> ``{"documents", "question", "answer"}`` over a vector store."""
    retriever = store.as_retriever(search_kwargs={"k": TOP_K})
    prompt = ChatPromptTemplate.from_messages(
        [("human", "Context:\n{context}\n\nQuestion: {question}")]
    )
    answer = RunnableLambda(prompt_values) | prompt | (reader or ExtractiveChatModel())
    return RunnableParallel(
        documents=retriever, question=RunnablePassthrough()
    ) | RunnablePassthrough.assign(answer=answer | StrOutputParser())


def prompt_values(values: dict[str, Any]) -> dict[str, str]:
    """Write the retrieved documents as numbered passages beside the question."""
    documents: list[LangChainDocument] = values["documents"]
    passages = [Document(str(one.id), one.page_content, one.metadata) for one in documents]
    return {"context": format_passages(passages), "question": values["question"]}
