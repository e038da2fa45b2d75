"""Chains over a graph in memory, ``NetworkxEntityGraph``: as plain, and scheduled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from graph_programs import QueryWriter, run_three_ways
from langchain_community.chains.graph_qa.base import GraphQAChain
from langchain_community.graphs.networkx_graph import KnowledgeTriple, NetworkxEntityGraph
from langchain_core.runnables import RunnableLambda
from lc_fakes import SyncRetriever

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.accelerator import current_request
from rag_accel.leaves.retrieved_documents import MOST_RESULTS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # chains of chains

ODD = ["it's", 'say "hi"', "two\nlines", "n) DETACH DELETE n //", "a -> b", ""]
TRIPLES = [
    ("Ada", "knows", "Ben"),
    ("Ben", "knows", "Cy"),
    ("Cy", "knows", "Ada"),
    ("Ada", "likes", "Ada"),
    ("Ada", "owns", "Dog"),
    *(("Ada", "said", name) for name in ODD),
    *((name, "is of", "Ada") for name in ODD),
]
WRITTEN = {
    "who?": "Ada, Ben",
    "odd?": ", ".join(ODD),
    "none?": "NONE",
    "unknown?": "Nobody, Ada, Nobody",
    "": "",
}


def graph_of(triples: list[tuple[str, str, str]] = TRIPLES) -> NetworkxEntityGraph:
    graph = NetworkxEntityGraph()
    for triple in triples:
        graph.add_triple(KnowledgeTriple(*triple))
    return graph


def chain_over(graph: Any, meeting: Any = None) -> GraphQAChain:
    return GraphQAChain.from_llm(QueryWriter(written=WRITTEN, meeting=meeting), graph=graph)


@pytest.mark.parametrize("question", WRITTEN)
def test_a_chain_gives_and_tells_what_the_plain_one_does(
    question: str, accelerator: Accelerator
) -> None:
    ways = (
        lambda chain, config: chain.invoke({"query": question}, config),
        lambda chain, config: asyncio.run(chain.ainvoke({"query": question}, config)),
    )
    for run in ways:
        bare, *others = run_three_ways(lambda: chain_over(graph_of()), run, accelerator)
        assert [entry[0] for entry in bare[1]].count("on_text") == 5
        assert others == [bare, bare]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_what_a_graph_knows_is_the_same_list(depth: int, accelerator: Accelerator) -> None:
    graph = graph_of()
    fast = accelerate(graph, accelerator=accelerator)
    for entity in ["Ada", "Ben", "Nobody", *ODD]:
        assert fast.get_entity_knowledge(entity, depth) == graph.get_entity_knowledge(entity, depth)
    graph.add_triple(KnowledgeTriple("Ben", "is", "new"))
    found = fast.get_entity_knowledge("Ben", depth=max(depth, 1))
    assert "Ben is new" in found
    assert found == graph.get_entity_knowledge("Ben", depth=max(depth, 1))


def test_what_a_graph_knows_pushes_no_documents_out(accelerator: Accelerator) -> None:
    graph, retriever = graph_of(), SyncRetriever()

    def search(question: str) -> frozenset[str]:
        found = retriever.invoke(question)
        for _ in range(MOST_RESULTS):
            graph.get_entity_knowledge("Ada")
        run = current_request.get()
        assert run is not None
        assert {text for _, text in run.retrieved.texts()} == {one.page_content for one in found}
        return run.retrieved.asked

    fast = accelerate(RunnableLambda(search), accelerator=accelerator)
    assert fast.invoke("who?") == {"who?"}


def test_an_error_of_the_graph_is_the_plain_one(accelerator: Accelerator) -> None:
    def broken() -> GraphQAChain:
        graph = graph_of()
        graph._graph.add_edge("Ada", "Eve")  # has no relation
        return chain_over(graph)

    bare, *others = run_three_ways(
        broken, lambda chain, config: chain.invoke({"query": "who?"}, config), accelerator
    )
    assert bare[0].startswith("<class 'KeyError'>")
    assert others == [bare, bare]


def test_two_graphs_of_two_tenants_stay_apart(accelerator: Accelerator) -> None:
    chains = {
        tenant: accelerate(
            chain_over(graph_of([("Ada", "is of", tenant)])), accelerator=accelerator
        )
        for tenant in ("one", "two")
    }
    expected = {
        tenant: chain_over(graph_of([("Ada", "is of", tenant)])).invoke({"query": "who?"})
        for tenant in chains
    }
    with activate(accelerator):
        found = {tenant: chain.invoke({"query": "who?"}) for tenant, chain in chains.items()}
    assert found == expected
    assert found["one"] != found["two"]


def test_a_chain_with_an_async_form_of_its_own_keeps_it(accelerator: Accelerator) -> None:
    class Own(GraphQAChain):
        async def _acall(self, inputs: Any, run_manager: Any = None) -> dict[str, Any]:
            return {"result": asyncio.current_task() is not None}

    model = QueryWriter()
    fast = accelerate(Own.from_llm(model, graph=graph_of()), accelerator=accelerator)
    assert asyncio.run(fast.ainvoke({"query": "who?"}))["result"] is True
    assert model.journal.calls == []


#: A graph's library may be imported after everything else was switched on.
LATE = {
    "networkx": """
from langchain_community.graphs.networkx_graph import NetworkxEntityGraph
model.invoke("x")
graph = NetworkxEntityGraph()
graph.get_entity_knowledge("Ada")
""",
    "a subclass": """
from langchain_community.graphs.graph_store import GraphStore
model.invoke("x")
class Own(GraphStore):
    def query(self, query, params={}):
        return [query]
assert Own().query("MATCH (n)") == ["MATCH (n)"]
""",
    "neo4j": """
import langchain_neo4j
class Driver:
    def execute_query(self, *args, **kwargs):
        return [], None, None
graph = object.__new__(langchain_neo4j.Neo4jGraph)
graph._driver, graph._database, graph.timeout, graph.sanitize = Driver(), "", None, False
assert graph.query("MATCH (n)") == []
del graph._driver
""",
}


@pytest.mark.processes
@pytest.mark.parametrize("name", LATE)
def test_a_graph_whose_library_is_imported_late_is_scheduled(name: str) -> None:
    if name == "neo4j":
        pytest.importorskip("langchain_neo4j")
    code = f"""
import langchain_rag_accel
from langchain_core.language_models import FakeListChatModel
from langchain_rag_accel.coverage import coverage
model = FakeListChatModel(responses=["y"])
with langchain_rag_accel.activate(), coverage() as meter:
{"".join(f"    {line}{chr(10)}" for line in LATE[name].strip().splitlines())}
rows = {{row.kind: row.scheduled for row in meter.rows()}}
assert rows["knowledge graph"] == 1, rows
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
