"""What ``accelerate`` gives for objects of neo4j-graphrag, none of which needs a server."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import pytest
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.llm import LLMInterface
from neo4j_graphrag.llm.types import LLMResponse, ToolCall, ToolCallResponse
from neo4j_graphrag.retrievers import ToolsRetriever, VectorRetriever
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.types import RawSearchResult
from ng_kit import (
    HashEmbedder,
    ScriptedDriver,
    ScriptedModel,
    digest,
    steps,
    vector_of,
)

from neo4j_graphrag_rag_accel import accelerate, activate, explain
from neo4j_graphrag_rag_accel.integration import INTEGRATION
from rag_accel import Accelerator, ConfigError


def retriever() -> VectorRetriever:
    """Return a retriever over a driver without a server."""
    return VectorRetriever(ScriptedDriver(), "facts", HashEmbedder())


def program() -> GraphRAG:
    """Return a program over it."""
    return GraphRAG(retriever(), ScriptedModel(digest))


class OldModel(LLMInterface):
    """A model of the older interface, which names a tool if it is given some."""

    def __init__(self, *tools: str) -> None:
        logging.getLogger("neo4j_graphrag.llm.base").disabled = True  # it says that it is old
        super().__init__("old")
        self.tools = tools

    def invoke(self, input: str, *args: Any, **kwargs: Any) -> LLMResponse:
        return LLMResponse(content=f"{input} {args} {kwargs}")

    async def ainvoke(self, input: str, *args: Any, **kwargs: Any) -> LLMResponse:
        return self.invoke(input)

    def invoke_with_tools(self, input: str, tools: Any, *args: Any, **kw: Any) -> ToolCallResponse:
        calls = [ToolCall(name=name, arguments={"query_text": input}) for name in self.tools]
        return ToolCallResponse(tool_calls=calls, content="")


def test_an_embedder_is_scheduled_call_by_call(accelerator: Accelerator) -> None:
    fast = accelerate(HashEmbedder(), accelerator=accelerator)
    assert fast.embed_query("a") == vector_of("a")
    assert asyncio.run(fast.async_embed_query(text="b")) == vector_of("b")
    assert (fast.calls, steps(accelerator)) == (["a", "b"], {"HashEmbedder": 2})


@pytest.mark.parametrize("model", [OldModel(), ScriptedModel(digest)], ids=["old", "new"])
def test_a_model_is_scheduled_call_by_call(model: Any, accelerator: Accelerator) -> None:
    fast = accelerate(model, accelerator=accelerator)
    assert fast.invoke("a") == model.invoke("a")
    assert asyncio.run(fast.ainvoke("b")) == asyncio.run(model.ainvoke("b"))
    assert steps(accelerator) == {type(model).__name__: 2}


def test_accelerated_parts_may_be_put_into_a_program(accelerator: Accelerator) -> None:
    parts = (HashEmbedder(), ScriptedModel(digest))
    embedder, model = (accelerate(one, accelerator=accelerator) for one in parts)
    fast = GraphRAG(VectorRetriever(ScriptedDriver(), "facts", embedder), model)
    expected = program().search("when?", return_context=True)
    assert fast.search("when?", return_context=True) == expected
    assert steps(accelerator) == {"HashEmbedder": 1, "ScriptedModel": 1}


def test_tools_made_of_retrievers_are_the_leaves(accelerator: Accelerator) -> None:
    driver = ScriptedDriver()
    tools = [retriever().convert_to_tool(name, "finds facts") for name in ("one", "two")]
    plain = ToolsRetriever(driver, OldModel("one", "two"), tools)
    fast = accelerate(plain, accelerator=accelerator)
    found, expected = (one.search(query_text="when?") for one in (fast, plain))
    assert found == expected
    assert len(found.items) == 2
    assert steps(accelerator) == {"OldModel": 1, "VectorRetriever": 2, "HashEmbedder": 2}


def test_a_retriever_of_the_users_own_is_scheduled(accelerator: Accelerator) -> None:
    class Own(Retriever):
        def get_search_results(self, query_text: str) -> RawSearchResult:
            records, _, _ = self.driver.execute_query(query_text, {})
            return RawSearchResult(records=records, metadata={"asked": query_text})

    plain = Own(ScriptedDriver())
    with activate(accelerator):
        found = plain.search("MATCH (n) RETURN n")
    assert found == plain.search("MATCH (n) RETURN n")
    assert found.metadata == {"asked": "MATCH (n) RETURN n", "__retriever": "Own"}
    assert steps(accelerator)["Own"] == 1


def test_a_retriever_over_one_of_another_kind_runs_as_it_does(accelerator: Accelerator) -> None:
    class Doubled(Retriever):
        def __init__(self, inner: Retriever) -> None:
            super().__init__(inner.driver)
            self.inner = inner

        def get_search_results(self, query_text: str) -> RawSearchResult:
            found = self.inner.get_search_results(query_text=query_text)
            return RawSearchResult(records=found.records * 2, metadata={})

    plain = Doubled(retriever())
    fast = accelerate(plain, accelerator=accelerator)
    assert fast.search(query_text="when?") == plain.search(query_text="when?")
    assert steps(accelerator) == {"VectorRetriever": 1, "HashEmbedder": 1}


def test_each_query_is_sent_once_and_as_it_is(accelerator: Accelerator) -> None:
    plain = retriever()
    plain.search(query_text="when?", top_k=3)
    accelerate(plain, accelerator=accelerator).search(query_text="when?", top_k=3)
    one, other = plain.driver.sent
    assert one == other


def test_a_pickled_embedder_comes_back_accelerated() -> None:
    back = pickle.loads(pickle.dumps(accelerate(HashEmbedder())))
    assert type(back).__rag_accel__
    assert back.embed_query("a") == vector_of("a")


def test_an_unknown_object_is_refused_with_what_would_be_valid() -> None:
    with pytest.raises(ConfigError, match="a GraphRAG, retriever, embedder or LLM") as caught:
        accelerate([1])
    assert "builtins.list" in str(caught.value)


def test_a_class_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match=r"an instance: accelerate\(GraphRAG\(\.\.\.\)\)"):
        accelerate(GraphRAG)


def test_a_driver_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match="activate"):
        accelerate(ScriptedDriver())


def test_each_part_is_named_with_how_it_runs(accelerator: Accelerator) -> None:
    said = explain(accelerate(program(), accelerator=accelerator)).splitlines()
    assert "neo4j-graphrag keeps the control flow" in said[0]
    assert said[2:] == [
        "  program: GraphRAG: runs plainly around its leaves, each search is one request",
        "  program.retriever: VectorRetriever: borrowed: admitted by the scheduler, runs where its"
        " caller is (no engine of this library computes what this class does around the parts that"
        " it holds); the queries that it sends over its driver are part of that call",
        "  program.llm: ScriptedModel: borrowed: admitted by the scheduler, runs where its caller"
        " is (no engine of this library computes what this class does)",
        "  program.retriever.embedder: HashEmbedder: borrowed: admitted by the scheduler, runs"
        " where its caller is (no engine of this library computes what this class does)",
    ]


def test_the_retrievers_behind_tools_are_named() -> None:
    tool = retriever().convert_to_tool("facts", "finds facts")
    said = explain(ToolsRetriever(ScriptedDriver(), OldModel(), [tool]))
    assert "program: ToolsRetriever: runs plainly around the retrievers" in said
    assert "program.tools.0.embedder: HashEmbedder: borrowed" in said


def test_a_method_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert INTEGRATION.missing_methods() == []
    monkeypatch.delattr("neo4j_graphrag.embeddings.base.Embedder.async_embed_query")
    monkeypatch.delattr("neo4j_graphrag.generation.graphrag.GraphRAG.search")
    assert INTEGRATION.missing_methods() == [
        "neo4j_graphrag.embeddings.base.Embedder.async_embed_query",
        "neo4j_graphrag.generation.graphrag.GraphRAG.search",
    ]
