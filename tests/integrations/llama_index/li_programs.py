"""LlamaIndex programs over fakes, and what a run of one shows: answer, nodes, events and spans."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from llama_index.core import Document, VectorStoreIndex, get_response_synthesizer
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.chat_engine import CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.rate_limiter import BaseRateLimiter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

TEXTS = [
    "The bridge opened in 1932.",
    "The ferry takes nine minutes.",
    "Trams ran until 1961.",
    "The tunnel has four lanes.",
]


class EchoLLM(CustomLLM):
    """A model whose answer follows from the prompt alone."""

    calls: int = 0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=2048, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.calls += 1
        return CompletionResponse(text=_answer(prompt))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Iterator[CompletionResponse]:
        self.calls += 1

        def chunks() -> Iterator[CompletionResponse]:
            text = ""
            for word in _answer(prompt).split(" "):
                text += word + " "
                yield CompletionResponse(text=text, delta=word + " ")

        return chunks()


def _answer(prompt: str) -> str:
    if "Some choices are given below" in prompt:
        return '[{"choice": 1, "reason": "the first"}]'
    return f"answer {sha256(prompt.encode()).hexdigest()[:8]} of {len(prompt)}"


class HashEmbedding(BaseEmbedding):
    """An embedding that follows from the text alone."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return [byte / 255 for byte in sha256(text.encode()).digest()[:16]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class CountedLimiter(BaseRateLimiter):
    """A limiter that lets all through, one after the other."""

    def __init__(self) -> None:
        self.asked = 0

    def acquire(self, num_tokens: int = 0) -> None:
        self.asked += 1

    async def async_acquire(self, num_tokens: int = 0) -> None:
        self.asked += 1


class TwoQuestions(BaseQuestionGenerator):
    """A generator that asks each tool the same."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        pass

    def generate(self, tools: Sequence[Any], query: Any) -> list[SubQuestion]:
        return [
            SubQuestion(sub_question=f"{query.query_str} of {tool.name}", tool_name=tool.name)
            for tool in tools
        ]

    async def agenerate(self, tools: Sequence[Any], query: Any) -> list[SubQuestion]:
        return self.generate(tools, query)


@dataclass(frozen=True, slots=True)
class Parts:
    """Leaves that a program is made of."""

    llm: EchoLLM = field(default_factory=EchoLLM)
    embedding: HashEmbedding = field(default_factory=HashEmbedding)

    def index(self) -> VectorStoreIndex:
        """Return an index of the texts under fixed ids."""
        documents = [Document(text=text, id_=f"d{number}") for number, text in enumerate(TEXTS)]
        return VectorStoreIndex.from_documents(documents, embed_model=self.embedding)

    def engine(self, **arguments: Any) -> RetrieverQueryEngine:
        """Return the query engine of such an index."""
        return self.index().as_query_engine(llm=self.llm, similarity_top_k=2, **arguments)


def _mode(mode: str) -> Callable[[Parts], Any]:
    return lambda parts: parts.engine(response_mode=mode)


def _sub_question(parts: Parts) -> Any:
    tools = [
        QueryEngineTool.from_defaults(parts.engine(), name=name, description=name)
        for name in ("north", "south")
    ]
    return SubQuestionQueryEngine(
        question_gen=TwoQuestions(),
        response_synthesizer=get_response_synthesizer(llm=parts.llm),
        query_engine_tools=tools,
        use_async=False,
        verbose=False,
    )


def _router(parts: Parts) -> Any:
    tools = [
        QueryEngineTool.from_defaults(parts.engine(), name=name, description=name)
        for name in ("north", "south")
    ]
    selector = LLMSingleSelector.from_defaults(llm=parts.llm)
    return RouterQueryEngine(selector=selector, query_engine_tools=tools, llm=parts.llm)


def _hyde(parts: Parts) -> Any:
    return TransformQueryEngine(parts.engine(), HyDEQueryTransform(llm=parts.llm))


def _multi_step(parts: Parts) -> Any:
    return MultiStepQueryEngine(
        query_engine=parts.engine(),
        query_transform=StepDecomposeQueryTransform(llm=parts.llm, verbose=False),
        response_synthesizer=get_response_synthesizer(llm=parts.llm),
        num_steps=2,
    )


def _citation(parts: Parts) -> Any:
    return CitationQueryEngine.from_args(parts.index(), llm=parts.llm, similarity_top_k=2)


def _fusion(parts: Parts) -> Any:
    retriever = QueryFusionRetriever(
        [parts.index().as_retriever(similarity_top_k=2) for _ in range(2)],
        llm=parts.llm,
        num_queries=2,
        use_async=False,
    )
    return RetrieverQueryEngine.from_args(retriever, llm=parts.llm)


def _postprocessed(parts: Parts) -> Any:
    return parts.engine(node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.1)])


QUERY_ENGINES: dict[str, Callable[[Parts], Any]] = {
    "compact": _mode("compact"),
    "refine": _mode("refine"),
    "tree summarize": _mode("tree_summarize"),
    "accumulate": _mode("accumulate"),
    "simple summarize": _mode("simple_summarize"),
    "postprocessed": _postprocessed,
    "sub-question": _sub_question,
    "router": _router,
    "hyde": _hyde,
    "multi-step": _multi_step,
    "citation": _citation,
    "fusion": _fusion,
}


def _context_chat(parts: Parts) -> Any:
    return ContextChatEngine.from_defaults(parts.index().as_retriever(), llm=parts.llm)


def _condense_chat(parts: Parts) -> Any:
    return CondenseQuestionChatEngine.from_defaults(parts.engine(), llm=parts.llm)


CHAT_ENGINES: dict[str, Callable[[Parts], Any]] = {
    "context": _context_chat,
    "condense question": _condense_chat,
}


class _Events(BaseEventHandler):
    """A counter of events by class."""

    seen: Counter[str] = Counter()

    @classmethod
    def class_name(cls) -> str:
        return "_Events"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen[type(event).__name__] += 1


@dataclass(frozen=True, slots=True)
class Shown:
    """What a run shows to its caller and to instrumentation."""

    answer: Any
    kind: type
    nodes: list[tuple[str, float | None]]
    events: Counter[str]
    spans: Counter[str]


@contextmanager
def recording() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Count the events and the spans of all that runs in the block."""
    root = get_dispatcher("root")
    events, spans = _Events(seen=Counter()), SimpleSpanHandler()
    found: tuple[Counter[str], Counter[str]] = (events.seen, Counter())
    root.add_event_handler(events)
    root.add_span_handler(spans)
    try:
        yield found
        found[1].update(span.id_.rpartition("-")[0][:-28] for span in spans.completed_spans)
        assert not spans.open_spans
    finally:
        root.event_handlers.remove(events)
        root.span_handlers.remove(spans)


def shown(call: Callable[[], Any]) -> Shown:
    """Return what a call shows."""
    with recording() as (events, spans):
        response = call()
        answer = text_of(response)
    return Shown(answer, type(response), nodes_of(response), events, spans)


def run_in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop of another thread, as a sync test may not have one of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, coroutine).result()


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Tell whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def text_of(response: Any) -> str:
    """Return a response's text, its stream taken to the end."""
    is_stream = isinstance(response, StreamingResponse | StreamingAgentChatResponse)
    return "".join(response.response_gen) if is_stream else str(response)


def nodes_of(response: Any) -> list[tuple[str, float | None]]:
    """Return the texts and scores of a response's source nodes, in order."""
    return [(node.node.get_content(), node.score) for node in response.source_nodes]
