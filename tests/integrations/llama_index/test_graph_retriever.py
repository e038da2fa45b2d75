"""The retriever of a knowledge graph's paths finds what a stage of a graph finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_facts import CHAIN, QUESTION, TRIPLES, by_stage, embed, facts
from li_knowledge import WordEmbedding, assert_equal
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_rag_accel import RagAccelGraphRetriever, accelerate, explain
from rag_accel import Accelerator, ConfigError
from rag_accel.engines import BoltGraph, KnowledgeEngine, MemoryGraph
from rag_accel.errors import EngineError


def retriever(accelerator: Accelerator | None = None, **options: Any) -> RagAccelGraphRetriever:
    given = {"graph": facts(), "embed_model": WordEmbedding(), **options}
    return RagAccelGraphRetriever(accelerator=accelerator, **given)


def texts(found: list[NodeWithScore]) -> list[str]:
    return [one.text for one in found]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"link": "words", "hops": 1, "similarity_top_k": 2},
        {"hops": 3, "direction": "out", "seeds": 1},
        {"relations": ["wrote to", "designed"]},
        {"relations": []},
        {"fan_out": 1, "max_paths": 2, "hops": 3},
        {"similarity_top_k": 0},
        {"seeds": 0, "link": "words"},
    ],
    ids=str,
)
async def test_it_finds_what_a_stage_finds(
    options: dict[str, Any], accelerator: Accelerator
) -> None:
    asked = {name.removeprefix("similarity_"): value for name, value in options.items()}
    made = retriever(accelerator, **options)
    expected = by_stage(made.graph, QUESTION, **asked)
    assert_equal(made.retrieve(QUESTION), expected)
    assert_equal(await made.aretrieve(QUESTION), expected)
    set_later = retriever(accelerator)
    for name, value in options.items():
        setattr(set_later, name, value)
    assert_equal(set_later.retrieve(QUESTION), expected)


@pytest.mark.parametrize("link", ["vector", "words"])
async def test_paths_of_a_database_are_those_of_a_stage(
    link: str, accelerator: Accelerator
) -> None:
    bolt_fakes: Any = pytest.importorskip("bolt_fakes")  # without neo4j there is no driver
    names = sorted({name for head, _, tail in TRIPLES for name in (head, tail)})
    vectors = dict(zip(names, embed(names).tolist(), strict=True))
    driver = bolt_fakes.FakeDriver(TRIPLES, vectors)
    graph = BoltGraph(driver, text_index="texts", vector_index="vectors")
    made = retriever(accelerator, graph=graph, link=link, seeds=2)
    expected = by_stage(graph, QUESTION, link=link, seeds=2)
    assert expected
    assert_equal(made.retrieve(QUESTION), expected)
    assert_equal(await made.aretrieve(QUESTION), expected)
    assert driver.open_sessions == 0


def test_a_prompt_and_an_embedding_hold_the_path_alone(accelerator: Accelerator) -> None:
    (found,) = retriever(accelerator, similarity_top_k=1).retrieve(QUESTION)
    assert found.node.get_content(MetadataMode.LLM) == CHAIN
    assert found.node.get_content(MetadataMode.EMBED) == CHAIN


# Misuse ---------------------------------------------------------------------------------------

BAD_OPTIONS = [
    ("similarity_top_k", -1),
    ("hops", "2"),
    ("fan_out", 2**64),
    ("link", "hybrid"),
    ("relations", ["r", None]),
]


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=str)
async def test_bad_options_are_refused_by_name(
    name: str, value: Any, accelerator: Accelerator
) -> None:
    with pytest.raises(ConfigError, match=name):
        retriever(accelerator, **{name: value})
    made = retriever(accelerator)
    setattr(made, name, value)
    with pytest.raises(ConfigError, match=name) as refused:
        made.retrieve(QUESTION)
    assert refused.value.valid
    with pytest.raises(ConfigError, match=name):
        await made.aretrieve(QUESTION)


# Runs, tenants, loops -------------------------------------------------------------------------


class Around(BaseRetriever):
    """A retriever of the user's around another one."""

    def __init__(self, inner: BaseRetriever) -> None:
        self.inner = inner
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.inner.retrieve(query_bundle)


async def test_an_explanation_names_the_component_and_its_engine() -> None:
    graph = facts()
    with Accelerator(graph=graph, strict=True) as accelerator:
        fast = accelerate(Around(retriever(graph=graph)), accelerator=accelerator)
        (line,) = [one for one in explain(fast).splitlines() if "GraphRetriever" in one]
        assert "RagAccelGraphRetriever: engine graph: paths of a MemoryGraph" in line
        own = accelerate(retriever(), accelerator=accelerator)
        (line,) = [one for one in explain(own).splitlines() if "GraphRetriever: " in one]
        assert "of its own" in line
        own.retrieve(QUESTION)
        assert "RagAccelGraphRetriever: engine graph#" in explain(own)


def test_each_tenant_reads_a_graph_of_its_own() -> None:
    mine = MemoryGraph([("a", "r", "mine")])
    theirs = MemoryGraph([("a", "r", "theirs")])
    engine = KnowledgeEngine({"x": mine, "y": theirs})
    made = retriever(graph=engine, link="words")
    for name, expected in (("x", "a -> r -> mine"), ("y", "a -> r -> theirs")):
        with Accelerator(namespace=name, strict=True) as accelerator:
            assert texts(accelerate(made, accelerator=accelerator).retrieve("a")) == [expected]
            own = retriever(accelerator, graph=engine, link="words")
            assert texts(own.retrieve("a")) == [expected]
    with (
        Accelerator(namespace="z", strict=True) as nobody,
        pytest.raises(EngineError, match="tenant"),
    ):
        accelerate(made, accelerator=nobody).retrieve("a")


def test_another_model_that_is_set_later_makes_the_vectors(accelerator: Accelerator) -> None:
    class Reversed(WordEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return super()._get_text_embedding(text)[::-1]

    made = retriever(accelerator)
    before = made.retrieve(QUESTION)
    made.graph.embed(lambda texts: np.ascontiguousarray(embed(texts)[:, ::-1]), model="reversed")
    made.embed_model = other = Reversed()
    assert [one.text for one in made.retrieve(QUESTION)] == [one.text for one in before]
    assert other._queries == [QUESTION]
