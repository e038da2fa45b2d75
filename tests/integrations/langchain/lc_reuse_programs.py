"""Programs that put what they have retrieved into a prompt, each in its own manner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypedDict

from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
)
from langchain_classic.retrievers.document_compressors import (
    LLMChainExtractor,
)
from langchain_classic.storage import InMemoryStore
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter
from langgraph.graph import END, START, StateGraph

TEXTS = {
    "a": "The height of Mount Fuji is 3776 metres.",
    "b": "A lane holds keys and values of one sequence.",
    "c": "The guide said which of the documents it is.\nIts height is in metres, and not in feet.",
}
SYSTEM = ("system", "Answer by the documents.")
PROMPT = ChatPromptTemplate.from_messages(
    [SYSTEM, ("user", "{context}\n\nWhich document says {input}?")]
)
Program = Runnable[str, Any]


class Orders(BaseRetriever):
    """Returns the documents that the first word of a query names, in its order."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        named = [name for name in query.partition(" ")[0] if name in TEXTS]
        return [
            Document(id=name, page_content=TEXTS[name], metadata={"source": f"{name}.txt"})
            for name in named
        ]


class Reversed(BaseDocumentCompressor):
    """A reranker that turns the order round."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        return list(reversed(documents))


def joined(documents: list[Document]) -> str:
    return "\n\n".join(one.page_content for one in documents)


def numbered(documents: list[Document]) -> str:
    return "\n".join(f"[{at}] {one.page_content.strip()}" for at, one in enumerate(documents, 1))


def over(retriever: Any, prompt: ChatPromptTemplate, model: Any) -> Program:
    found = {"context": retriever | joined, "input": RunnablePassthrough()}
    return found | prompt | model | StrOutputParser()


def stuffed(model: Any) -> Program:
    """Return LangChain's own chain; the system's turn holds the documents."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Use the context.\n\n{context}"), ("human", "Who says {input}?")]
    )
    chain = create_retrieval_chain(Orders(), create_stuff_documents_chain(model, prompt))
    return RunnableLambda(lambda query: {"input": query}) | chain | itemgetter("answer")


def with_sources(model: Any) -> Program:
    one = PromptTemplate.from_template("Source: {source}\n{page_content}")
    stuff = create_stuff_documents_chain(model, PROMPT, document_prompt=one)
    return {"context": Orders(), "input": RunnablePassthrough()} | stuff


def question_first(model: Any) -> Program:
    prompt = ChatPromptTemplate.from_template("Question: {input}?\nContext: {context}\nAnswer:")
    return over(Orders(), prompt, model)


def with_history(model: Any) -> Program:
    prompt = ChatPromptTemplate.from_messages(
        [SYSTEM, MessagesPlaceholder("history"), ("user", "{context}\n\nWho says {input}?")]
    )
    history = [HumanMessage("Are there documents?"), AIMessage("There are three.")]
    return (
        RunnableLambda(lambda query: {"input": query, "history": history})
        | RunnablePassthrough.assign(context=itemgetter("input") | Orders() | joined)
        | prompt
        | model
        | StrOutputParser()
    )


def with_numbers(model: Any) -> Program:
    return {"context": Orders() | numbered, "input": RunnablePassthrough()} | PROMPT | model


class State(TypedDict, total=False):
    input: str
    context: str
    answer: str


def graph_with_a_tool(model: Any) -> Program:
    tool = create_retriever_tool(Orders(), "find", "Finds documents.")

    def find(state: State) -> State:
        return {"context": tool.invoke({"query": state["input"]})}

    def answer(state: State) -> State:
        return {"answer": (PROMPT | model | StrOutputParser()).invoke(state)}

    graph = StateGraph(State)
    graph.add_node("find", find)
    graph.add_node("answer", answer)
    graph.add_edge(START, "find")
    graph.add_edge("find", "answer")
    graph.add_edge("answer", END)
    return RunnableLambda(lambda query: {"input": query}) | graph.compile()


def reranked(model: Any) -> Program:
    retriever = ContextualCompressionRetriever(base_compressor=Reversed(), base_retriever=Orders())
    return over(retriever, PROMPT, model)


def extracted(model: Any) -> Program:
    """Return a program whose compressor writes texts of its own."""
    llm = FakeListLLM(responses=["Its height is in metres, as it says."])
    retriever = ContextualCompressionRetriever(
        base_compressor=LLMChainExtractor.from_llm(llm), base_retriever=Orders()
    )
    return over(retriever, PROMPT, model)


def many_queries(model: Any) -> Program:
    llm = FakeListLLM(responses=["ab\nbc"])
    retriever = MultiQueryRetriever.from_llm(Orders(), llm, include_original=True)
    return over(retriever, PROMPT, model)


def parents(model: Any) -> Program:
    """Return a program that searches by lines, and puts the texts they are of into the prompt."""
    retriever = ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(DeterministicFakeEmbedding(size=8)),
        docstore=InMemoryStore(),
        child_splitter=CharacterTextSplitter(separator="\n", chunk_size=50, chunk_overlap=0),
        search_kwargs={"k": 8},
    )
    retriever.add_documents([Document(page_content=one) for one in TEXTS.values()])
    return over(retriever, PROMPT, model)


def nested(model: Any) -> Program:
    """Return a chain whose answer is made by a chain inside a function."""
    inner = PROMPT | model | StrOutputParser()

    def answer(query: str) -> Any:
        return inner.invoke({"context": numbered(Orders().invoke(query)), "input": query})

    return RunnableLambda(answer)


PROGRAMS: list[Callable[[Any], Program]] = [
    stuffed,
    with_sources,
    question_first,
    with_history,
    with_numbers,
    graph_with_a_tool,
    reranked,
    many_queries,
    parents,
]
