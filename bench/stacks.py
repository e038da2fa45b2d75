"""Usual stacks: programs as people write them, over scripted servers where something is hosted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import langchain_rag_accel
import llama_index_rag_accel
from bench.llama_index_programs import WaitingLLM
from rag_accel.accelerator import Accelerator
from rag_accel.interception.explanation import AROUND_PARTS

SUBJECTS = ("bridge", "ferry", "harbour", "library", "lighthouse", "market", "museum", "quarry")
TEXTS = [f"The {SUBJECTS[n % 8]} number {n} opened in {1800 + n}." for n in range(320)]
_FEW = TEXTS[:40]
_PROMPT = "Answer from {context}: {question}"


@dataclass(frozen=True, slots=True)
class Stack:
    """A program of a usual stack.

    Args:
        name: of its parts, first the framework.
        make: returns it, given the base URL of a server of OpenAI's interface and the folder of a
            local embedding model.
        ask: returns its answer, or what it found, as a text.
        verbs: the integration's module.
        mechanism: what explains that something acts on it, in the words of ``explain``.
    """

    name: str
    make: Callable[[str, str], Any]
    ask: Callable[[Any, str], Awaitable[str]]
    verbs: Any
    mechanism: str

    def accelerated(self, program: Any, accelerator: Accelerator) -> Any:
        """Return the program accelerated, as its user does it."""
        return self.verbs.accelerate(program, accelerator=accelerator)

    def parts(self, program: Any) -> tuple[list[str], list[str]]:
        """Return the parts of an accelerated program that something acts on, and the others.

        Others come with the reason, as ``explain`` says both.
        """
        acting, idle = list[str](), list[str]()
        for line in self.verbs.explain(program).splitlines():
            _, _, said = line.partition(": ")
            name, _, how = said.partition(": ")
            _, not_now, reason = how.rstrip(")").partition("(not now: ")
            if how.startswith("borrowed") and AROUND_PARTS not in how:
                idle.append(f"{name} {how[how.index('(') :]}" if "(" in how else name)
            elif not_now:
                idle.append(f"{name} ({reason})")
            elif how.startswith("recognised"):
                acting.append(name)
        return list(dict.fromkeys(acting)), list(dict.fromkeys(idle))


#: clients of the openai package that programs were made with, to be closed
_clients: list[Any] = []


async def close_clients() -> None:
    """Close the connections of all programs made by now, on the loop that opened them."""
    while _clients:
        closing = _clients.pop().close()
        if closing is not None:
            await closing


def _openai(url: str, **more: Any) -> Any:
    from langchain_openai import OpenAIEmbeddings

    made = OpenAIEmbeddings(
        model="m", base_url=url, api_key="k", check_embedding_ctx_length=False, **more
    )
    _clients.extend([made.client._client, made.async_client._client])
    return made


def _chat(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    made = ChatOpenAI(model="m", base_url=url, api_key="k")  # type: ignore[arg-type]
    _clients.extend([made.root_client, made.root_async_client])
    return made


def _local(folder: str) -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=folder)


def _retriever(embeddings: Any, texts: list[str] = _FEW) -> Any:
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(texts, embeddings)
    return store.as_retriever(search_kwargs={"k": 2})


def _chain(retriever: Any, model: Any) -> Any:
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough

    given: Any = {"context": retriever, "question": RunnablePassthrough()}
    return given | ChatPromptTemplate.from_template(_PROMPT) | model


def _graph(retriever: Any, model: Any) -> Any:
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict, total=False):
        question: str
        context: str
        answer: str

    async def retrieve(state: State) -> State:
        found = await retriever.ainvoke(state["question"])
        return {"context": "\n".join(document.page_content for document in found)}

    async def generate(state: State) -> State:
        answer = await model.ainvoke(f"{state['context']}\n{state['question']}")
        return {"answer": str(answer.content)}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", END)
    return graph.compile()


def _filtered(url: str, folder: str) -> Any:
    from langchain_classic.retrievers import ContextualCompressionRetriever
    from langchain_classic.retrievers.document_compressors import EmbeddingsFilter

    embeddings = _openai(url, default_headers={"X-Team": "search"})
    retriever = ContextualCompressionRetriever(
        base_compressor=EmbeddingsFilter(embeddings=embeddings, k=1),
        base_retriever=_retriever(embeddings),
    )
    return _chain(retriever, _chat(url))


def _index(embedding: Any, **more: Any) -> Any:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    nodes = [TextNode(text=text, id_=str(number)) for number, text in enumerate(_FEW)]
    index = VectorStoreIndex(nodes, embed_model=embedding)
    return index.as_query_engine(llm=WaitingLLM(answer_s=0.05), similarity_top_k=2, **more)


def _local_embedding(folder: str) -> Any:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(model_name=folder)


def _hosted_embedding(url: str, folder: str) -> Any:
    from llama_index.embeddings.openai import OpenAIEmbedding

    made = OpenAIEmbedding(model_name="m", api_base=url, api_key="k")
    _clients.extend([made._get_client(), made._get_aclient()])
    return _index(made)


def _pipeline(url: str, folder: str) -> Any:
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.node_parser import SentenceSplitter

    parts: list[Any] = [SentenceSplitter(chunk_size=64, chunk_overlap=0), _local_embedding(folder)]
    return IngestionPipeline(transformations=parts, disable_cache=True)


async def _answer(program: Any, question: str) -> str:
    return str((await program.ainvoke(question)).content)


async def _state(program: Any, question: str) -> str:
    return str((await program.ainvoke({"question": question}))["answer"])


async def _response(program: Any, question: str) -> str:
    return str(await program.aquery(question))


async def _ingested(program: Any, question: str) -> str:
    from llama_index.core import Document

    nodes = await program.arun(documents=[Document(text=f"{question} {text}") for text in _FEW[:4]])
    return " ".join(f"{value:.3f}" for node in nodes for value in node.embedding[:4])


_SHARED = "share its calls"
_LOCAL = "texts of all requests share batches"
_TURNS = "they wait for their turn"
STACKS = (
    Stack(
        "LangChain, OpenAIEmbeddings, InMemoryVectorStore, ChatOpenAI",
        lambda url, folder: _chain(_retriever(_openai(url)), _chat(url)),
        *(_answer, langchain_rag_accel, _SHARED),
    ),
    Stack(
        "LangChain, OpenAIEmbeddings at a gateway, EmbeddingsFilter, ChatOpenAI",
        *(_filtered, _answer, langchain_rag_accel, _SHARED),
    ),
    Stack(
        "LangChain, HuggingFaceEmbeddings, InMemoryVectorStore, ChatOpenAI",
        lambda url, folder: _chain(_retriever(_local(folder), TEXTS), _chat(url)),
        *(_answer, langchain_rag_accel, _LOCAL),
    ),
    Stack(
        "LangGraph, OpenAIEmbeddings, InMemoryVectorStore, ChatOpenAI",
        lambda url, folder: _graph(_retriever(_openai(url)), _chat(url)),
        *(_state, langchain_rag_accel, _SHARED),
    ),
    Stack(
        "LangGraph, HuggingFaceEmbeddings, InMemoryVectorStore, ChatOpenAI",
        lambda url, folder: _graph(_retriever(_local(folder)), _chat(url)),
        *(_state, langchain_rag_accel, _LOCAL),
    ),
    Stack(
        "LangChain, ChatOpenAI alone",
        lambda url, folder: _chat(url),
        *(_answer, langchain_rag_accel, _TURNS),
    ),
    Stack(
        "LlamaIndex, HuggingFaceEmbedding, SimpleVectorStore",
        lambda url, folder: _index(_local_embedding(folder)),
        *(_response, llama_index_rag_accel, _LOCAL),
    ),
    Stack(
        "LlamaIndex, OpenAIEmbedding, SimpleVectorStore",
        *(_hosted_embedding, _response, llama_index_rag_accel, _SHARED),
    ),
    Stack(
        "LlamaIndex, IngestionPipeline, HuggingFaceEmbedding",
        *(_pipeline, _ingested, llama_index_rag_accel, _LOCAL),
    ),
)
