"""The contract of all integrations: programs behave as plain ones, whatever their framework is.

Each program of a test finds a text, then asks a model; both parts are the user's own, and a test
may have something done in them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from idle_accelerators import soon_idle

from rag_accel import Accelerator, BusyError, ClosedError, DeadlineError
from rag_accel.errors import UnreadOptionWarning
from rag_accel.interception.patches import patches

PATIENCE_S = 30.0
TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
CALLERS = 8


@dataclass
class Parts:
    """Have the parts of a program do something in each call.

    Args:
        during: what they do before they answer, given the name of the part.
        aduring: what a model does on a loop.
    """

    during: Callable[[str], None] = lambda part: None
    aduring: Callable[[str], Awaitable[None]] | None = None
    asked: list[str] = field(default_factory=list)

    def find(self, question: str) -> str:
        """Return the text that a search finds."""
        self.during("find")
        return f"found {question} for {TENANT.get()}"

    def answer(self, prompt: str) -> str:
        """Return the answer of a model."""
        self.asked.append(prompt)
        self.during("answer")
        return f"{len(prompt)} letters for {TENANT.get()}"

    async def aanswer(self, prompt: str) -> str:
        """Return the same on a loop."""
        if self.aduring is not None:
            await self.aduring("answer")
        return self.answer(prompt)


@dataclass(frozen=True)
class Framework:
    """Tell how programs of a framework are made and called; ``None`` where it has no such way.

    Args:
        integration: the package for it.
        make: makes a program of parts.
        run: returns the answer to a question.
        arun: does so on a loop.
        stream: returns the pieces of the answer.
    """

    integration: ModuleType
    make: Callable[..., Any]
    run: Callable[[Any, str], str]
    arun: Callable[[Any, str], Awaitable[str]] | None = None
    stream: Callable[[Any, str], Iterator[str]] | None = None

    def accelerate(self, parts: Parts, accelerator: Accelerator, **how: Any) -> Any:
        """Return an accelerated program."""
        return self.integration.accelerate(self.make(parts, **how), accelerator=accelerator)

    def coverage(self, *programs: Any) -> Any:
        """Return the framework's meter of calls."""
        return import_module(f"{self.integration.__name__}.coverage").coverage(*programs)


def _langchain(integration: ModuleType) -> Framework:
    from langchain_core.documents import Document
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda

    class Search(BaseRetriever):
        parts: Any

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [Document(self.parts.find(query))]

    class Model(BaseChatModel):
        parts: Any

        @property
        def _llm_type(self) -> str:
            return "own"

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            text = self.parts.answer(messages[-1].text)
            return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            text = await self.parts.aanswer(messages[-1].text)
            return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

        def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            for word in self.parts.answer(messages[-1].text).split():
                yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))

    def make(parts: Parts, *, streams: bool = False) -> Any:
        shown = RunnableLambda(lambda found: found[0].page_content)
        return Search(parts=parts) | shown | Model(parts=parts) | StrOutputParser()

    return Framework(
        integration,
        make,
        run=lambda program, question: program.invoke(question),
        arun=lambda program, question: program.ainvoke(question),
        stream=lambda program, question: program.stream(question),
    )


def _llama_index(integration: ModuleType) -> Framework:
    from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
    from llama_index.core.llms.callbacks import llm_completion_callback
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    class Search(BaseRetriever):
        def __init__(self, parts: Parts) -> None:
            super().__init__()
            self.parts = parts

        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            return [NodeWithScore(node=TextNode(text=self.parts.find(query_bundle.query_str)))]

    class Model(CustomLLM):
        parts: Any

        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata()

        @llm_completion_callback()
        def complete(self, prompt: str, *args: Any, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text=self.parts.answer(prompt))

        @llm_completion_callback()
        async def acomplete(self, prompt: str, *args: Any, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text=await self.parts.aanswer(prompt))

        @llm_completion_callback()
        def stream_complete(self, prompt: str, *args: Any, **kwargs: Any) -> Any:
            def pieces() -> Iterator[CompletionResponse]:
                for word in self.parts.answer(prompt).split():
                    yield CompletionResponse(text=word, delta=f"{word} ")

            return pieces()

    def make(parts: Parts, *, streams: bool = False) -> Any:
        return RetrieverQueryEngine.from_args(
            Search(parts), llm=Model(parts=parts), streaming=streams
        )

    async def arun(program: Any, question: str) -> str:
        return str(await program.aquery(question))

    return Framework(
        integration,
        make,
        run=lambda program, question: str(program.query(question)),
        arun=arun,
        stream=lambda program, question: program.query(question).response_gen,
    )


def _neo4j_graphrag(integration: ModuleType) -> Framework:
    from neo4j import Record
    from neo4j_graphrag.generation import GraphRAG
    from neo4j_graphrag.llm.base import LLMInterfaceV2
    from neo4j_graphrag.llm.types import LLMResponse
    from neo4j_graphrag.retrievers.base import Retriever
    from neo4j_graphrag.types import RawSearchResult

    class Search(Retriever):
        def __init__(self, parts: Parts) -> None:  # without a driver
            self.parts = parts

        def get_search_results(self, query_text: str) -> RawSearchResult:
            return RawSearchResult(records=[Record({"text": self.parts.find(query_text)})])

    class Model(LLMInterfaceV2):
        def __init__(self, parts: Parts) -> None:
            super().__init__("own")
            self.parts = parts

        def invoke(self, input: Any, **kwargs: Any) -> LLMResponse:
            return LLMResponse(content=self.parts.answer(str(input)))

        async def ainvoke(self, input: Any, **kwargs: Any) -> LLMResponse:
            return LLMResponse(content=await self.parts.aanswer(str(input)))

    return Framework(
        integration,
        make=lambda parts: GraphRAG(Search(parts), Model(parts)),
        run=lambda program, question: program.search(question, return_context=False).answer,
    )


FRAMEWORKS: dict[str, tuple[str, Callable[[ModuleType], Framework]]] = {
    "langchain": ("langchain_core", _langchain),
    "llama_index": ("llama_index.core", _llama_index),
    "neo4j_graphrag": ("neo4j_graphrag", _neo4j_graphrag),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Iterator[Framework]:
    """Give a framework; in the end no class is patched."""
    core, made = FRAMEWORKS[request.param]
    pytest.importorskip(core)
    yield made(import_module(f"{request.param}_rag_accel"))
    gc.collect()
    assert patches.patched() == []


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator; in the end nothing lives in it and nothing was bypassed."""
    with Accelerator(strict=True) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}


def asked_at_once(run: Callable[[str], Any]) -> list[Any]:
    """Return what callers in a thread each get."""
    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(run, [f"q{number}" for number in range(CALLERS)]))


def has_loops(framework: Framework) -> Any:
    """Return how a program is run on a loop; skip the test where none is."""
    return framework.arun or pytest.skip("its programs are not run on loops")


def test_answers_are_the_plain_ones_and_each_call_is_scheduled(
    framework: Framework, accelerator: Accelerator
) -> None:
    plain = framework.run(framework.make(Parts()), "q")
    fast = framework.accelerate(Parts(), accelerator)
    with framework.coverage(fast) as meter:
        assert framework.run(fast, "q") == plain
        if framework.arun is not None:
            assert asyncio.run(framework.arun(fast, "q")) == plain  # type: ignore[arg-type]
    assert (meter.passed_by, meter.borrowed) == (0, 4 if framework.arun else 2)
    assert {call.cls for call in meter.calls} == {"Search", "Model"}
    assert "Model: borrowed" in framework.integration.explain(fast)


def test_a_stream_gives_the_plain_pieces_and_one_that_is_left_frees_its_call(
    framework: Framework, accelerator: Accelerator
) -> None:
    if framework.stream is None:
        pytest.skip("its programs do not stream")
    plain = list(framework.stream(framework.make(Parts(), streams=True), "q"))
    fast = framework.accelerate(Parts(), accelerator, streams=True)
    assert list(framework.stream(fast, "q")) == plain
    assert len(plain) > 1
    left = framework.stream(fast, "q")
    next(left)
    assert not accelerator.is_idle
    del left
    gc.collect()
    assert soon_idle(accelerator)


def test_a_plain_call_passes_by_and_an_activated_one_does_not(
    framework: Framework, accelerator: Accelerator
) -> None:
    program = framework.make(Parts())
    with framework.coverage() as meter:
        plain = framework.run(program, "q")
    assert (meter.passed_by, meter.borrowed) == (2, 0)
    with framework.integration.activate(accelerator), framework.coverage() as meter:
        assert framework.run(program, "q") == plain
    assert (meter.passed_by, meter.borrowed) == (0, 2)


@pytest.mark.parametrize("error", [LookupError("own"), KeyboardInterrupt("own")], ids=repr)
@pytest.mark.parametrize("part", ["find", "answer"])
def test_an_error_of_a_part_is_the_same_object_and_the_next_call_runs(
    part: str, error: BaseException, framework: Framework, accelerator: Accelerator
) -> None:
    def fail(name: str) -> None:
        if name == part:
            raise error

    parts = Parts(during=fail)
    fast = framework.accelerate(parts, accelerator)
    with pytest.raises(type(error)) as raised:
        framework.run(fast, "q")
    assert raised.value is error
    assert soon_idle(accelerator)
    parts.during = lambda part: None
    assert framework.run(fast, "q") == framework.run(framework.make(Parts()), "q")
    del raised
    error.__traceback__ = None


def test_a_run_that_is_cancelled_frees_its_call_and_the_others_go_on(
    framework: Framework, accelerator: Accelerator
) -> None:
    arun = has_loops(framework)

    async def run() -> list[Any]:
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def wait(part: str) -> None:
            begun.release()
            await go_on.wait()

        fast = framework.accelerate(Parts(aduring=wait), accelerator)
        tasks = [asyncio.ensure_future(arun(fast, f"q{number}")) for number in range(3)]
        for _ in tasks:
            await asyncio.wait_for(begun.acquire(), PATIENCE_S)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, cancelled, last = asyncio.run(run())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert first == last == framework.run(framework.make(Parts()), "q0")
    assert soon_idle(accelerator)


def test_callers_at_once_each_have_their_own_tenant(
    framework: Framework, accelerator: Accelerator
) -> None:
    together = threading.Barrier(CALLERS)

    def meet(part: str) -> None:
        together.wait(PATIENCE_S)

    def ask(program: Any) -> Callable[[str], str]:
        def asked(question: str) -> str:
            TENANT.set(f"tenant of {question}")
            return framework.run(program, question)

        return asked

    found = asked_at_once(ask(framework.accelerate(Parts(during=meet), accelerator)))
    assert found == asked_at_once(ask(framework.make(Parts())))
    assert all(f"tenant of q{number}" in answer for number, answer in enumerate(found))


@pytest.mark.parametrize("call_threads", [1, 4])
def test_programs_inside_of_parts_end_with_any_number_of_threads(
    call_threads: int, framework: Framework
) -> None:
    with Accelerator(strict=True, call_threads=call_threads) as accelerator:
        inner = framework.accelerate(Parts(), accelerator)
        arun = framework.arun

        def ask(part: str) -> None:
            if arun is None:
                framework.run(inner, "inner")
            else:  # on a loop of its own
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(lambda: asyncio.run(arun(inner, "inner"))).result(PATIENCE_S)

        fast = framework.accelerate(Parts(during=ask), accelerator)
        plain = framework.run(framework.make(Parts()), "q0")
        assert asked_at_once(lambda question: framework.run(fast, question)) == [plain] * CALLERS
        assert soon_idle(accelerator)


@pytest.mark.parametrize("is_activated", [False, True])
def test_switched_off_all_is_plain(
    is_activated: bool,
    framework: Framework,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = framework.accelerate(Parts(), accelerator)
    monkeypatch.setenv("RAG_ACCEL", "0")
    plain = framework.run(framework.make(Parts()), "q")
    with framework.coverage() as meter:
        if is_activated:
            with framework.integration.activate(accelerator):
                assert framework.run(framework.make(Parts()), "q") == plain
        else:
            assert framework.run(fast, "q") == plain
    assert (meter.borrowed, meter.scheduled) == (0, 0)
    assert "engines" not in accelerator.metrics.snapshot()


def test_nothing_begins_behind_the_deadline(framework: Framework) -> None:
    parts = Parts(during=lambda part: time.sleep(0.2))
    with Accelerator(deadline_s=0.05) as accelerator:
        fast = framework.accelerate(parts, accelerator)
        with pytest.raises(DeadlineError):
            framework.run(fast, "q")
        assert parts.asked == []
        assert accelerator.bypassed == {}
        assert soon_idle(accelerator)


def test_a_full_accelerator_refuses_or_has_its_callers_wait(framework: Framework) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(part: str) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    with Accelerator(max_requests=1, on_full="raise") as full, ThreadPoolExecutor(1) as pool:
        fast = framework.accelerate(Parts(during=wait), full)
        first = pool.submit(framework.run, fast, "q")
        assert begun.wait(PATIENCE_S)
        with pytest.raises(BusyError):
            framework.run(framework.accelerate(Parts(), full), "q")
        go_on.set()
        plain = framework.run(framework.make(Parts()), "q")
        assert first.result(PATIENCE_S) == plain
        assert full.bypassed == {}
    with Accelerator(max_requests=1) as waiting:
        patient = framework.accelerate(Parts(), waiting)
        assert asked_at_once(lambda _: framework.run(patient, "q")) == [plain] * CALLERS


@pytest.mark.parametrize("strict", [False, True])
def test_a_closed_accelerator_is_as_none_unless_it_is_strict(
    strict: bool, framework: Framework
) -> None:
    with Accelerator(strict=strict) as closed:
        fast = framework.accelerate(Parts(), closed)
    if strict:
        with pytest.raises(ClosedError):
            framework.run(fast, "q")
        return
    assert framework.run(fast, "q") == framework.run(framework.make(Parts()), "q")
    assert closed.bypassed


def test_an_option_that_no_part_reads_is_said(framework: Framework) -> None:
    with Accelerator(kv_reuse="full") as accelerator:
        with pytest.warns(UnreadOptionWarning, match="kv_reuse='full'"):
            fast = framework.accelerate(Parts(), accelerator)
        assert "option kv_reuse='full'" in framework.integration.explain(fast)


def test_a_call_is_one_request(
    framework: Framework, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_request = list[str](), accelerator.open_request

    def noted(name: str, *args: Any, **kwargs: Any) -> Any:
        opened.append(name)
        return open_request(name, *args, **kwargs)

    monkeypatch.setattr(accelerator, "open_request", noted)
    fast = framework.accelerate(Parts(), accelerator)
    for _ in range(2):
        framework.run(fast, "q")
    assert len(opened) == 2
