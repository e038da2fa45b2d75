"""The retriever of a knowledge graph's paths finds what a stage of a graph finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from graph_facts import CHAIN, QUESTION, Gathering, by_stage, facts
from langchain_tests.integration_tests import RetrieversIntegrationTests
from lc_graphs import AwaitedEmbeddings, WordEmbeddings, assert_equal, retriever, texts

from langchain_rag_accel import RagAccelGraphRetriever
from rag_accel import Accelerator
from rag_accel.engine_api import PrimitiveKind

SEARCHING, EXPANDING = PrimitiveKind.SEARCHING, PrimitiveKind.EXPANDING
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
        {"link": "words"},
        {"link": "words", "hops": 1, "k": 2},
        {"hops": 3, "direction": "out", "seeds": 1},
        {"direction": "in", "hops": 2},
        {"relations": ["wrote to", "designed"]},
        {"relations": "taught"},
        {"relations": []},
        {"fan_out": 1, "max_paths": 2, "hops": 3},
        {"hops": 0},
        {"k": 0},
        {"seeds": 0, "link": "words"},
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


def test_the_engine_of_the_accelerator_is_the_only_one_of_its_graph() -> None:
    graph = facts()
    with Accelerator(graph=graph, strict=True) as accelerator:
        assert texts(retriever(accelerator, graph=graph).invoke(QUESTION, k=1)) == [CHAIN]
        engines: Any = accelerator.metrics.snapshot()["engines"]
        assert [name for name in engines if name.startswith("graph")] == ["graph"]


async def test_callers_of_one_loop_share_every_hop() -> None:
    engine = Gathering(facts(), NUM_CALLERS, SEARCHING)
    with Accelerator(graph=engine, strict=True) as accelerator:
        made = retriever(accelerator, graph=engine, embedding=AwaitedEmbeddings(), k=1)
        questions = [f"{QUESTION} {number}" for number in range(NUM_CALLERS)]
        found = await asyncio.gather(*map(made.ainvoke, questions))
    assert [texts(one) for one in found] == [[CHAIN]] * NUM_CALLERS
    assert engine.counts["hop_requests"] == 2 * NUM_CALLERS
    assert (engine.counts["link_calls"], engine.counts["hop_calls"]) == (1, 2)
