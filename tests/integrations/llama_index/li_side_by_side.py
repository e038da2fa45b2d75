"""Programs whose sequential calls do not need each other, and calls that meet."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from li_programs import EchoLLM, HashEmbedding, Parts, TwoQuestions, nodes_of, text_of
from llama_index.core import get_response_synthesizer
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool
from llama_index_instrumentation import get_dispatcher

QUESTION = "When was the bridge opened?"
#: How many calls each program makes that do not need each other.
NUM_CALLS = 5
PATIENCE_S = 30
During = Callable[[str], None]


class SeenLLM(EchoLLM):
    """A model that notes its calls, in which a test may have something done."""

    seen: list[tuple[int, str]] = []
    during: Any = None

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        if "search quer" in prompt:  # for a fusion retriever
            return CompletionResponse(text="\n".join(f"query {place}" for place in range(4)))
        self.seen.append((threading.get_ident(), prompt))
        if self.during is not None:
            self.during(prompt)
        return super().complete(prompt, formatted, **kwargs)


class SeenEmbedding(HashEmbedding):
    """An embedding that notes the queries it is asked for."""

    seen: list[tuple[int, str]] = []
    during: Any = None
    aduring: Any = None

    def _get_query_embedding(self, query: str) -> list[float]:
        self.seen.append((threading.get_ident(), query))
        if self.during is not None:
            self.during(query)
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        self.seen.append((threading.get_ident(), query))
        if self.aduring is not None:
            await self.aduring(query)
        return self._get_text_embedding(query)


class Told(BaseRetriever):
    """A retriever that finds one text of its own, and in which something may be done."""

    def __init__(self, during: During, place: int) -> None:
        super().__init__()
        self._during, self._place = during, place
        self.threads: list[int] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.threads.append(threading.get_ident())
        self._during(query_bundle.query_str)
        node = TextNode(text=f"told {self._place}", id_=f"t{self._place}")
        return [NodeWithScore(node=node, score=0.5)]


#: What such programs hold of a user's own.
OWN = (SeenLLM, SeenEmbedding, TwoQuestions)


def parts_of(llm: During | None = None, embedding: During | None = None, **more: Any) -> Any:
    """Return parts that do something during each call."""
    return Parts(
        llm=SeenLLM(seen=[], during=llm),
        embedding=SeenEmbedding(seen=[], during=embedding, **more),
    )


def sub_questions(parts: Parts, engine: Any = None, number: int = NUM_CALLS) -> Any:
    """Return an engine that asks each of its tools in turn."""
    tools = [
        QueryEngineTool.from_defaults(engine or parts.engine(), name=name, description=name)
        for name in (f"tool {place}" for place in range(number))
    ]
    return SubQuestionQueryEngine(
        question_gen=TwoQuestions(),
        response_synthesizer=get_response_synthesizer(llm=parts.llm),
        query_engine_tools=tools,
        use_async=False,
        verbose=False,
    )


def fusion(parts: Parts) -> Any:
    """Return a retriever that searches for its question and four more queries."""
    retrievers = [parts.index().as_retriever(similarity_top_k=2) for _ in range(2)]
    return QueryFusionRetriever(
        retrievers, llm=parts.llm, num_queries=NUM_CALLS, use_async=False, similarity_top_k=4
    )


def accumulate(parts: Parts) -> Any:
    """Return a synthesizer that answers for each text alone."""
    return get_response_synthesizer(llm=parts.llm, response_mode=ResponseMode.ACCUMULATE)


def strings(parts: Parts) -> Any:
    """Return a retriever of an index."""
    return parts.index().as_retriever(similarity_top_k=2)


def bundle() -> QueryBundle:
    """Return a query with several strings to embed."""
    return QueryBundle(
        QUESTION, custom_embedding_strs=[f"string {place}" for place in range(NUM_CALLS)]
    )


#: by name, what makes a program and what asks it
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sub-questions": (sub_questions, lambda engine: engine.query(QUESTION)),
    "fusion": (fusion, lambda retriever: retriever.retrieve(QUESTION)),
    "accumulate": (accumulate, lambda one: one.synthesize(QUESTION, nodes=_nodes())),
    "strings": (strings, lambda retriever: retriever.retrieve(bundle())),
}


def _nodes() -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=f"text {place}", id_=f"n{place}"), score=1.0)
        for place in range(NUM_CALLS)
    ]


def calls_seen(parts: Any) -> list[tuple[int, str]]:
    """Return the calls of the parts that a program had: thread and text."""
    return [*parts.embedding.seen, *parts.llm.seen]


def plainly(result: Any) -> Any:
    """Return what can be compared of a response or of nodes."""
    if isinstance(result, list):
        return [(type(one), one.node.get_content(), one.score) for one in result]
    return type(result), text_of(result), nodes_of(result)


def meeting(size: int = NUM_CALLS) -> During:
    """Return what lets each of the first calls go on once all of them have begun."""
    barrier, lock, places = threading.Barrier(size), threading.Lock(), iter(range(size))

    def meet(text: str) -> None:
        with lock:
            is_first = next(places, None) is not None
        if is_first:
            barrier.wait(PATIENCE_S)

    return meet


def ameeting(size: int = NUM_CALLS) -> Callable[[str], Any]:
    """Return the same for coroutines of one loop."""
    waiting: list[asyncio.Future[None]] = []

    async def meet(text: str) -> None:
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == size:
            for one in waiting:
                one.set_result(None)
        await asyncio.wait_for(waiting[-1] if len(waiting) <= size else waiting[0], PATIENCE_S)

    return meet


class _BySpan(BaseEventHandler):
    """The names of events, in order, by the span they belong to."""

    seen: dict[str, list[str]] = {}

    @classmethod
    def class_name(cls) -> str:
        return "_BySpan"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.setdefault(event.span_id or "", []).append(type(event).__name__)


@contextmanager
def events_by_span() -> Iterator[Counter[tuple[str, tuple[str, ...]]]]:
    """Count the sequences of events that spans of a name have shown."""
    root, events = get_dispatcher("root"), _BySpan(seen={})
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    root.add_event_handler(events)
    try:
        yield found
    finally:
        root.event_handlers.remove(events)
    found.update((span.partition("-")[0], tuple(names)) for span, names in events.seen.items())
