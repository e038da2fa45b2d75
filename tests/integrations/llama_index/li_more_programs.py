"""More LlamaIndex programs: engines over engines, a property graph, ingestion; and all in a table.

A program is what makes it of its leaves, and the way it is used. What the use returns can be
compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from li_more_workflows import WORKFLOWS
from li_programs import (
    CHAT_ENGINES,
    QUERY_ENGINES,
    EchoLLM,
    Parts,
    nodes_of,
    recording,
    run_in_loop,
    text_of,
)
from llama_index.core import Document
from llama_index.core.base.response.schema import AsyncStreamingResponse
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter

QUESTION = "When was the bridge opened?"


def _ingestion(parts: Parts) -> Any:
    return IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=40, chunk_overlap=5), parts.embedding],
        cache=IngestionCache(),
        disable_cache=False,
    )


def response_shown(response: Any) -> Any:
    """Return a response's text, type and source nodes; its stream is taken to the end."""
    return text_of(response), type(response), nodes_of(response)


def ask(engine: Any) -> Any:
    """Ask an engine, synchronously."""
    return response_shown(engine.query(QUESTION))


async def aask(engine: Any) -> Any:
    """Ask an engine, asynchronously; if its response streams, its tokens stand for its text."""
    response = await engine.aquery(QUESTION)
    if isinstance(response, AsyncStreamingResponse):
        tokens = [token async for token in response.async_response_gen()]
        return tokens, type(response), nodes_of(response)
    return response_shown(response)


def _taken(engine: Any) -> Any:
    response = engine.query(QUESTION)
    return [*response.response_gen], type(response), nodes_of(response)


def _streamed_engine(parts: Parts) -> Any:
    return parts.engine(streaming=True)


def _chat(engine: Any) -> Any:
    turns = []
    for question in (QUESTION, "And the ferry?"):
        response = engine.stream_chat(question)
        turns.append(([*response.response_gen], type(response), nodes_of(response)))
    return turns, [(one.role, one.content) for one in engine.chat_history]


async def _achat(engine: Any) -> Any:
    turns = []
    for question in (QUESTION, "And the ferry?"):
        response = await engine.astream_chat(question)
        tokens = [token async for token in response.async_response_gen()]
        turns.append((tokens, type(response), nodes_of(response)))
    return turns, [(one.role, one.content) for one in engine.chat_history]


DOCUMENTS = [Document(text=f"Line {number}. " * 30, id_=f"d{number}") for number in range(2)]


def _ingest_twice(pipeline: Any) -> Any:
    runs = [pipeline.run(documents=DOCUMENTS) for _ in range(2)]
    return [[(node.get_content(), node.embedding) for node in nodes] for nodes in runs]


async def _aingest_twice(pipeline: Any) -> Any:
    runs = [await pipeline.arun(documents=DOCUMENTS) for _ in range(2)]
    return [[(node.get_content(), node.embedding) for node in nodes] for nodes in runs]


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its leaves, what makes it of them, and a use of it, which may be a coroutine."""

    make: Callable[[Parts], Any]
    use: Callable[[Any], Any]
    model: type[EchoLLM] = EchoLLM

    def made(self) -> Any:
        """Return the program over leaves of its own."""
        return self.make(Parts(llm=self.model()))

    def run(self, obj: Any) -> Any:
        """Return what its use gives."""
        given = self.use(obj)
        return run_in_loop(given) if asyncio.iscoroutine(given) else given


MORE: dict[str, Program] = {
    "streamed": Program(_streamed_engine, _taken),
    "streamed, async": Program(_streamed_engine, aask),
    "chat": Program(CHAT_ENGINES["context"], _chat),
    "chat, async": Program(CHAT_ENGINES["context"], _achat),
    "ingestion": Program(_ingestion, _ingest_twice),
    "ingestion, async": Program(_ingestion, _aingest_twice),
    **{name: Program(make, use) for name, (make, use) in WORKFLOWS.items()},
}

#: programs of each form: an engine over engines, an async stream, a workflow and a function agent
OF_EACH_FORM: dict[str, Program] = {
    "sub-question": Program(QUERY_ENGINES["sub-question"], ask),
    "streamed": MORE["streamed, async"],
    "rerank": MORE["rerank"],
    "function agent": MORE["function agent"],
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a program gave, and the events and spans of it."""

    given: Any
    events: Counter[str]
    spans: Counter[str]


def evidence(run: Callable[[], Any]) -> Evidence:
    """Return what a call shows."""
    with recording() as (events, spans):
        given = run()
    return Evidence(given, events, spans)
