"""Ten programs over parts that wait, whose gains ``rag-accel profile`` predicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
)
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langgraph.graph import END, START, StateGraph
from llama_index.core import get_response_synthesizer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from bench.llama_index_programs import WaitingLLM
from bench.stacks import chain, hosted_retriever


class WaitingSearch(BaseRetriever):
    """A retriever that finds two documents after a while."""

    name_of: str = "a"
    search_s: float = 0.06

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        time.sleep(self.search_s)
        return [Document(f"{self.name_of} {number} on {query}") for number in range(2)]


class WaitingChat(BaseChatModel):
    """A model that repeats the end of its prompt, once a line, after a while."""

    answer_s: float = 0.12
    lines: int = 1

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(self.answer_s)
        end = str(messages[-1].content)[-80:].replace("\n", " ")
        text = "\n".join(f"{number} {end}" for number in range(self.lines))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


class WaitingNodes(LlamaRetriever):
    """A retriever of LlamaIndex that finds four nodes after a while."""

    def __init__(self, number: int) -> None:
        self._number = number
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        time.sleep(0.06)
        texts = (f"{self._number} {place} on {query_bundle.query_str}" for place in range(4))
        return [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]


#: classes that several threads may call, as a user would name them
THREAD_SAFE = (WaitingSearch, WaitingChat, WaitingNodes, WaitingLLM)


class ProfiledProgram(NamedTuple):
    """A program, made with the URL of a server for embeddings, and how many users ask it at once.

    Each question is asked so many times, as the input of a name if the program's have names.
    """

    name: str
    make: Callable[[str], Any]
    users: int = 1
    repeats: int = 1
    input_name: str = ""

    def questions(self, count: int) -> list[Any]:
        """Return inputs, ``count`` for each user."""
        texts = [f"When did number {n} open?" for n in range(count * self.users // self.repeats)]
        asked = texts * self.repeats
        return [{self.input_name: text} for text in asked] if self.input_name else asked


def _chain(retriever: Any) -> Any:
    return chain(retriever, WaitingChat())


def _searches(*times_s: float) -> list[Any]:
    return [WaitingSearch(name_of=str(n), search_s=time_s) for n, time_s in enumerate(times_s)]


def _ensemble() -> Any:
    return EnsembleRetriever(retrievers=_searches(0.06, 0.1, 0.08), weights=[0.4, 0.3, 0.3])


def _extracted() -> Any:
    extractor = LLMChainExtractor.from_llm(WaitingChat(answer_s=0.08))
    base = MergerRetriever(retrievers=_searches(0.05, 0.05))
    return ContextualCompressionRetriever(base_compressor=extractor, base_retriever=base)


def _graph() -> Any:
    class State(TypedDict):
        question: str
        found: list[Document]
        answer: str

    retriever, model = _ensemble(), WaitingChat()

    def search(state: State) -> dict[str, Any]:
        return {"found": retriever.invoke(state["question"])}

    def grade(state: State) -> dict[str, Any]:
        model.invoke(f"Is {state['found']} about {state['question']}?")
        return {}

    def answer(state: State) -> dict[str, Any]:
        return {"answer": model.invoke(state["question"]).content}

    graph = StateGraph(State).add_sequence([search, grade, answer])
    return graph.add_edge(START, "search").add_edge("answer", END).compile()


def _engine(mode: ResponseMode, num_retrievers: int) -> Any:
    model = WaitingLLM(answer_s=0.08)
    found: list[Any] = [WaitingNodes(number) for number in range(num_retrievers)]
    fusion = QueryFusionRetriever(found, llm=model, num_queries=2, use_async=False)
    synthesizer = get_response_synthesizer(llm=model, response_mode=mode)
    return RetrieverQueryEngine(fusion if num_retrievers > 1 else found[0], synthesizer)


PROGRAMS = (
    ProfiledProgram("LangChain, search and answer", lambda url: _chain(WaitingSearch())),
    ProfiledProgram("the same, 4 users", lambda url: _chain(WaitingSearch()), users=4),
    ProfiledProgram("ensemble of 3 searches", lambda url: _chain(_ensemble())),
    ProfiledProgram(
        "3 queries that a model writes",
        lambda url: _chain(
            MultiQueryRetriever.from_llm(WaitingSearch(search_s=0.1), WaitingChat(lines=3))
        ),
    ),
    ProfiledProgram(
        "merger of 4 searches, 4 users",
        lambda url: _chain(MergerRetriever(retrievers=_searches(0.05, 0.06, 0.07, 0.08))),
        users=4,
    ),
    ProfiledProgram("extracts of 4 documents", lambda url: _chain(_extracted())),
    ProfiledProgram("LangGraph, ensemble and grade", lambda url: _graph(), input_name="question"),
    ProfiledProgram(
        "hosted embeddings, each question 4 times", lambda url: _chain(hosted_retriever(url)), 1, 4
    ),
    ProfiledProgram(
        "LlamaIndex, 2 queries of 3 searches", lambda url: _engine(ResponseMode.COMPACT, 3)
    ),
    ProfiledProgram(
        "LlamaIndex, accumulated answers, 2 users",
        lambda url: _engine(ResponseMode.ACCUMULATE, 1),
        users=2,
    ),
)
