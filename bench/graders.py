"""A corrective RAG graph of LangGraph: each document that a search finds is graded by a call."""

from __future__ import annotations

from typing import Any, TypedDict

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph

GRADE = ChatPromptTemplate.from_messages(
    [
        ("system", "You grade whether a document tells something of a question. Say yes or no."),
        ("human", "Document: {document}\n\nQuestion: {question}"),
    ]
)
ANSWER = ChatPromptTemplate.from_messages(
    [("human", "Answer in one sentence.\n\n{documents}\n\nQuestion: {question}")]
)


class State(TypedDict, total=False):
    """The values of a request."""

    question: str
    documents: list[str]
    grades: list[str]
    answer: str


def grading_graph(chat: Any, embeddings: Any, texts: list[str], top_k: int) -> Any:
    """Return the graph: search, grade one document after the other, answer from those kept.

    Args:
        chat: the model that grades and answers.
        embeddings: of the store.
        texts: the documents.
        top_k: documents that are found.
    """
    store = InMemoryVectorStore.from_texts(texts, embeddings)
    retriever = store.as_retriever(search_kwargs={"k": top_k})
    grade, answer = GRADE | chat | StrOutputParser(), ANSWER | chat | StrOutputParser()

    def search(state: State) -> State:
        return {"documents": [one.page_content for one in retriever.invoke(state["question"])]}

    def grade_all(state: State) -> State:
        asked = [{"document": one, "question": state["question"]} for one in state["documents"]]
        return {"grades": [grade.invoke(one) for one in asked]}

    def reply(state: State) -> State:
        found = zip(state["documents"], state["grades"], strict=True)
        kept = [text for text, told in found if not told.lower().startswith("no")]
        documents = "\n\n".join(kept or state["documents"])
        return {"answer": answer.invoke({"documents": documents, "question": state["question"]})}

    graph: Any = StateGraph(State)
    graph.add_sequence([search, ("grade", grade_all), ("respond", reply)])
    return graph.add_edge(START, "search").add_edge("respond", END).compile()
