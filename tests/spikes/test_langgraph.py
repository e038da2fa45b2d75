"""A LangGraph program as it is, under ``activate()``: 16 requests at once, every leaf scheduled.

The graph has what static analysis cannot see through: functions as nodes, a model made inside one,
a fan-out with ``Send`` whose width only the run knows, and a subgraph.
"""

from __future__ import annotations

import asyncio
import hashlib
import operator
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import CoverageRow, coverage
from rag_accel import Accelerator

USERS = 16
WIDTH = 4
LEAVES = USERS * (1 + WIDTH + 1 + 1)
DURATION_S = 0.02


class Model(BaseChatModel):
    """Answer with a digest of the prompt; native async, streaming both ways."""

    role: str = "generate"

    @property
    def _llm_type(self) -> str:
        return "graph-fake"

    def _text(self, messages: list[BaseMessage]) -> str:
        prompt = " ".join(str(message.text) for message in messages)
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        return f"{self.role} said {digest[:8]}"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage(content=self._text(messages))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> ChatResult:
        await asyncio.sleep(DURATION_S)
        return self._generate(messages)

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[Any]:
        for word in self._text(messages).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word + " "))

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        await asyncio.sleep(DURATION_S)
        for chunk in self._stream(messages):
            yield chunk


class Retriever(BaseRetriever):
    """Find four documents that follow from the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(page_content=f"{query} / part {number}") for number in range(WIDTH)]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(DURATION_S)
        return self._get_relevant_documents(query, run_manager=None)


class State(TypedDict):
    question: str
    documents: list[str]
    grades: Annotated[list[str], operator.add]
    summary: str
    answer: str


class Part(TypedDict):
    document: str


RETRIEVER = Retriever()
ANSWER = ChatPromptTemplate.from_template("{question} {summary}") | Model() | StrOutputParser()


async def retrieve(state: State) -> dict[str, Any]:
    found = await RETRIEVER.ainvoke(state["question"])
    return {"documents": [document.page_content for document in found]}


def fan_out(state: State) -> list[Send]:
    return [Send("grade", {"document": document}) for document in state["documents"]]


async def grade(part: Part) -> dict[str, Any]:
    verdict = await Model(role="grade").ainvoke(part["document"])  # made inside the node
    return {"grades": [str(verdict.text)]}


async def summarize(state: State) -> dict[str, Any]:
    text = " ".join(sorted(state["grades"]))
    return {"summary": str((await Model(role="summary").ainvoke(text)).text)}


async def generate(state: State) -> dict[str, Any]:
    get_stream_writer()({"note": "generating"})
    return {"answer": await ANSWER.ainvoke(state)}


def _graph(pausing: bool = False, checkpointer: Any = None) -> Any:
    def review(state: State) -> dict[str, Any]:
        return {"summary": state["summary"] + str(interrupt("fine?"))} if pausing else {}

    inner = StateGraph(State)
    inner.add_node("summarize", summarize)
    inner.add_edge(START, "summarize")
    inner.add_edge("summarize", END)
    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("grade", grade)
    graph.add_node("inner", inner.compile())
    graph.add_node("review", review)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_conditional_edges("retrieve", fan_out, ["grade"])
    graph.add_edge("grade", "inner")
    graph.add_edge("inner", "review")
    graph.add_edge("review", "generate")
    graph.add_edge("generate", END)
    return graph.compile(checkpointer=checkpointer)


QUESTIONS = [{"question": f"question {number}", "grades": []} for number in range(USERS)]
ALL_SCHEDULED = [
    CoverageRow("chat model", USERS * (WIDTH + 2), 0, USERS * (WIDTH + 2)),
    CoverageRow("retriever", USERS, 0, USERS),
]


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator that must be empty afterwards."""
    with Accelerator(strict=True) as made:
        yield made
        assert made._driver.is_idle
        assert made.bypassed == {}


def _answers(states: list[Any]) -> list[Any]:
    return [(state["answer"], sorted(state["grades"])) for state in states]


async def _answer_all(app: Any) -> list[Any]:
    return await asyncio.gather(*(app.ainvoke(question) for question in QUESTIONS))


async def test_sixteen_requests_answer_as_before_with_every_leaf_scheduled(
    accelerator: Accelerator,
) -> None:
    app = _graph()
    expected = _answers(await _answer_all(app))
    with activate(accelerator), coverage() as meter:
        found = _answers(await _answer_all(app))
    assert found == expected
    assert meter.rows() == ALL_SCHEDULED


async def _streamed(app: Any, question: Any, modes: list[str]) -> list[str]:
    items = [item async for item in app.astream(question, stream_mode=modes, subgraphs=True)]
    return [re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27,}", "<id>", repr(item)) for item in items]


@pytest.mark.parametrize("modes", [["messages"], ["updates", "values", "custom", "messages"]])
async def test_streams_carry_the_same_items_and_every_leaf_is_scheduled(
    modes: list[str], accelerator: Accelerator
) -> None:
    app = _graph()

    async def stream_all() -> list[list[str]]:
        return await asyncio.gather(*(_streamed(app, one, modes) for one in QUESTIONS))

    expected = await stream_all()
    with activate(accelerator), coverage() as meter:
        found = await stream_all()
    # Nodes that run side by side hand over their chunks in no fixed order.
    assert list(map(sorted, found)) == list(map(sorted, expected))
    assert "rag_accel" not in repr(found)
    assert meter.rows() == ALL_SCHEDULED


async def test_events_are_the_same(accelerator: Accelerator) -> None:
    app = _graph()

    async def names() -> list[Any]:
        events = [event async for event in app.astream_events(QUESTIONS[0], version="v2")]
        return sorted((event["event"], event["name"]) for event in events)

    expected = await names()
    with activate(accelerator):
        assert await names() == expected


async def test_an_interrupted_run_resumes_to_the_same_answer(accelerator: Accelerator) -> None:
    from langgraph.types import Command

    async def run(app: Any, thread: str) -> tuple[Any, ...]:
        config = {"configurable": {"thread_id": thread}}
        paused = await app.ainvoke(QUESTIONS[0], config)
        waiting = (await app.aget_state(config)).next
        done = await app.ainvoke(Command(resume="yes"), config)
        history = [state.metadata async for state in app.aget_state_history(config)]
        kept = [(one["step"], one["source"]) for one in history]
        assert "rag_accel" not in repr(history)
        return paused["__interrupt__"][0].value, waiting, done["answer"], kept

    app = _graph(pausing=True, checkpointer=InMemorySaver())
    expected = await run(app, "plain")
    with activate(accelerator), coverage() as meter:
        assert await run(app, "scheduled") == expected
    assert meter.passed_by == 0


async def test_an_accelerated_graph_answers_alike(accelerator: Accelerator) -> None:
    app = _graph()
    fast = accelerate(app, accelerator=accelerator)
    expected = _answers(await _answer_all(app))
    with coverage() as meter:
        assert _answers(await _answer_all(fast)) == expected
    assert meter.rows() == ALL_SCHEDULED


async def test_a_request_that_fails_harms_no_other_one(accelerator: Accelerator) -> None:
    class Failing(Retriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            if query.endswith(" 3"):
                raise ValueError(query)
            return self._get_relevant_documents(query, run_manager=None)

    failing = Failing()

    async def picky(state: State) -> dict[str, Any]:
        found = await failing.ainvoke(state["question"])
        return {"documents": [document.page_content for document in found]}

    graph = StateGraph(State)
    graph.add_node("retrieve", picky)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", END)
    app = graph.compile()
    with activate(accelerator):
        found = await asyncio.gather(
            *(app.ainvoke(question) for question in QUESTIONS), return_exceptions=True
        )
    assert [number for number, one in enumerate(found) if isinstance(one, ValueError)] == [3]
