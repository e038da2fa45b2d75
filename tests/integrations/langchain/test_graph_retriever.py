"""The retriever of a knowledge graph's paths: what it finds, its runs, its graphs, its misuse."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from bolt_fakes import FakeDriver
from forked_child import in_child
from graph_facts import CHAIN, QUESTION, TRIPLES, Gathering, by_stage, facts
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from lc_fakes import FakeEmbeddings
from lc_graphs import AwaitedEmbeddings, WordEmbeddings, assert_equal, retriever, soon, texts
from triples import fill

from langchain_rag_accel import RagAccelGraphRetriever, accelerate, explain
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator, ConfigError
from rag_accel.accelerator import current_request
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge.bolt import BoltGraph
from rag_accel.errors import DeadlineError

NUM_CALLERS = 16


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def made(self, accelerator: Accelerator) -> None:
        self.params = {
            "graph": facts(),
            "embedding": WordEmbeddings(),
            "accelerator": accelerator,
        }

    @property
    def retriever_constructor(self) -> type[RagAccelGraphRetriever]:
        return RagAccelGraphRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.params

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"link": "words", "hops": 1, "k": 2},
        {"hops": 3, "direction": "out", "seeds": 1},
        {"relations": ["wrote to", "designed"]},
        {"relations": []},
        {"fan_out": 1, "max_paths": 2, "hops": 3},
        {"k": 0},
        {"hops": 6, "k": 200},
    ],
    ids=str,
)
async def test_it_finds_what_a_stage_finds(
    options: dict[str, Any], accelerator: Accelerator
) -> None:
    asked = {("top_k" if name == "k" else name): value for name, value in options.items()}
    made = retriever(accelerator, **options)
    expected = by_stage(made.graph, QUESTION, **asked)
    assert_equal(made.invoke(QUESTION), expected)
    assert_equal(await made.ainvoke(QUESTION), expected)
    assert_equal(retriever(accelerator).invoke(QUESTION, **options), expected)


@pytest.mark.parametrize(
    "keywords", [["Charles Babbage"], "Ada Lovelace, no century", ["nobody"], [], ""], ids=str
)
async def test_keywords_name_where_to_start(keywords: Any, accelerator: Accelerator) -> None:
    made = retriever(accelerator)
    expected = by_stage(made.graph, QUESTION, keywords)
    assert_equal(made.invoke(QUESTION, keywords=keywords), expected)
    assert_equal(await made.ainvoke(QUESTION, keywords=keywords), expected)


async def test_callers_of_one_loop_share_every_hop() -> None:
    engine = Gathering(facts(), NUM_CALLERS, PrimitiveKind.SEARCHING)
    with Accelerator(graph=engine, strict=True) as accelerator:
        made = retriever(accelerator, graph=engine, embedding=AwaitedEmbeddings(), k=1)
        questions = [f"{QUESTION} {number}" for number in range(NUM_CALLERS)]
        found = await asyncio.gather(*map(made.ainvoke, questions))
    assert [texts(one) for one in found] == [[CHAIN]] * NUM_CALLERS
    assert engine.counts["hop_requests"] == 2 * NUM_CALLERS
    assert (engine.counts["link_calls"], engine.counts["hop_calls"]) == (1, 2)


# Runs ---------------------------------------------------------------------------------------------


class Events(BaseCallbackHandler):
    """Names of what a retriever told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self.told.append("start")

    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:
        self.told.append(f"end {len(documents)}")

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.told.append(type(error).__name__)


async def test_callbacks_are_a_retrievers(accelerator: Accelerator) -> None:
    for way in ("invoke", "ainvoke"):
        events = Events()
        found = getattr(retriever(accelerator, k=3), way)(QUESTION, {"callbacks": [events]})
        assert len(await found if way == "ainvoke" else found) == 3
        assert events.told == ["start", "end 3"]
    with pytest.raises(ConfigError):
        retriever(accelerator).invoke(QUESTION, {"callbacks": [events]}, k=-1)
    assert events.told[2:] == ["start", "ConfigError"]


async def test_it_is_part_of_the_accelerated_run_that_calls_it(accelerator: Accelerator) -> None:
    made = retriever(k=1)
    seen: list[Any] = []

    def remember(found: list[Document]) -> list[str]:
        run = current_request.get()
        assert run is not None
        seen.append(
            (run.accelerator, [text for _, text in run.retrieved.texts()], run.retrieved.asked)
        )
        return texts(found)

    fast = accelerate(made | RunnableLambda(remember), accelerator=accelerator)
    with coverage() as meter:
        assert fast.invoke(QUESTION) == [CHAIN]
        assert await fast.ainvoke(QUESTION) == [CHAIN]
    assert meter.passed_by == 0
    assert {row.kind: row.queued for row in meter.rows()}["retriever"] == 2
    assert seen == [(accelerator, [CHAIN], {QUESTION})] * 2
    assert accelerator.engine_of(made.graph) is not None


def test_a_run_that_is_too_late_waits_for_no_hop() -> None:
    engine = Gathering(facts(), 2, PrimitiveKind.EXPANDING)  # which never has two
    with (
        Accelerator(graph=engine, strict=True, deadline_s=0.5) as accelerator,
        pytest.raises(DeadlineError),
    ):
        retriever(accelerator, graph=engine).invoke(QUESTION)


async def test_an_explanation_names_the_component_and_its_engine() -> None:
    graph = facts()
    with Accelerator(graph=graph, strict=True) as accelerator:
        made = retriever(graph=graph)
        fast = accelerate(made | RunnableLambda(texts), accelerator=accelerator)
        (line,) = [one for one in explain(fast).splitlines() if "GraphRetriever: " in one]
        assert "RagAccelGraphRetriever: engine graph: paths of a MemoryGraph" in line
        own = retriever()
        assert "of its own" in own.explain_on(accelerator)
        own.scheduled_by(accelerator).invoke(QUESTION)
        assert "of its own" in own.explain_on(accelerator)  # which left with its only holder


# Graphs -------------------------------------------------------------------------------------------


def test_a_copy_has_a_graph_of_its_own(accelerator: Accelerator) -> None:
    made = retriever(
        accelerator, graph=MemoryGraph(TRIPLES), embedding=FakeEmbeddings(), link="words"
    )
    found = made.invoke(QUESTION)
    copied = copy.deepcopy(made)
    made.graph.remove(entities=["Ada Lovelace"])
    assert copied.invoke(QUESTION) == found
    assert made.invoke(QUESTION) != found


@pytest.mark.processes
def test_a_forked_child_reads_the_graph_it_was_given() -> None:
    made = retriever(k=1)
    made.invoke(QUESTION)
    assert in_child(lambda: texts(made.invoke(QUESTION))) == [CHAIN]
    assert texts(made.invoke(QUESTION)) == [CHAIN]


async def test_a_graph_in_a_database_gives_the_same_paths(accelerator: Accelerator) -> None:
    in_memory, driver = facts(), FakeDriver(TRIPLES)
    made = retriever(accelerator, graph=BoltGraph(driver))
    expected = by_stage(in_memory, QUESTION, ["Ada Lovelace"])
    assert_equal(made.invoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    assert_equal(await made.ainvoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    assert driver.open_sessions == 0


async def test_a_question_whose_query_hangs_holds_up_no_other(accelerator: Accelerator) -> None:
    driver, go_on = FakeDriver(TRIPLES), threading.Event()
    driver.held["Mary Somerville"] = go_on
    made = retriever(accelerator, graph=BoltGraph(driver), hops=1)
    hanging = asyncio.create_task(made.ainvoke(QUESTION, keywords=["Mary Somerville"]))
    await soon(lambda: bool(driver.open_sessions))
    (found,) = await made.ainvoke(QUESTION, keywords=["Charles Babbage"], direction="out")
    assert found.page_content == "Charles Babbage -> designed -> the Analytical Engine"
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    go_on.set()
    await soon(lambda: not driver.open_sessions)


@pytest.mark.neo4j
async def test_a_real_database_gives_the_same_paths(
    neo4j_driver: Any, accelerator: Accelerator
) -> None:
    fill(neo4j_driver, TRIPLES)
    made = retriever(accelerator, graph=BoltGraph(neo4j_driver))
    expected = by_stage(facts(), QUESTION, ["Ada Lovelace"])
    assert_equal(made.invoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    callers = (made.ainvoke(QUESTION, keywords=["Ada Lovelace"]) for _ in range(NUM_CALLERS))
    for found in await asyncio.gather(*callers):
        assert_equal(found, expected)


# Misuse -------------------------------------------------------------------------------------------


BAD_GRAPHS = {
    "none": None,
    "a callable": lambda query, k: [],
}


@pytest.mark.parametrize("graph", BAD_GRAPHS.values(), ids=BAD_GRAPHS)
def test_what_is_no_knowledge_graph_is_refused_by_name(graph: Any) -> None:
    with pytest.raises(ConfigError, match="MemoryGraph, a BoltGraph or a KnowledgeEngine"):
        RagAccelGraphRetriever(graph=graph, embedding=WordEmbeddings())


def test_a_retriever_without_a_graph_or_embeddings_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="knowledge graph"):
        RagAccelGraphRetriever(embedding=WordEmbeddings())
    for embedding in ({}, {"embedding": None}, {"embedding": "minilm"}):
        with pytest.raises(ConfigError, match="needs embeddings"):
            RagAccelGraphRetriever(graph=facts(), **embedding)


BAD_OPTIONS = [
    ("k", -1),
    ("hops", "2"),
    ("fan_out", 2**64),
    ("link", "hybrid"),
    ("relations", ["r", None]),
    ("top_k", 3),
    ("filter", {"a": 1}),
]


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=str)
async def test_bad_options_are_refused_by_name(
    name: str, value: Any, accelerator: Accelerator
) -> None:
    with pytest.raises(ConfigError, match=name):
        retriever(accelerator, **{name: value})
    good = retriever(accelerator)
    with pytest.raises(ConfigError, match=name) as refused:
        good.invoke(QUESTION, **{name: value})
    assert refused.value.valid
    with pytest.raises(ConfigError, match=name):
        await good.ainvoke(QUESTION, **{name: value})


def test_errors_of_the_embeddings_are_the_callers_own(accelerator: Accelerator) -> None:
    class Failing(WordEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise error

    error = RuntimeError("no model")
    for link in ("vector", "words"):
        with pytest.raises(RuntimeError) as raised:
            retriever(accelerator, embedding=Failing(), link=link).invoke(QUESTION)
        assert raised.value is error
