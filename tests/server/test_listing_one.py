"""HedraRAG's Listing 1, with our import line, and a folder and an index in place of two names."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from fake_runner import tokenizer
from graph_text import parse, references
from server_harness import become_idle
from tiny_chat import model

from rag_accel import END, START, GraphError, LoopLimitWarning, RAGraph, Server
from rag_accel.engine_api import Document
from rag_accel.engines import DocumentIndex, IndexSpec
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import OnLoopLimit
from rag_accel.graph.text import format
from rag_accel.testing import FakeEngine, vector_of


def hyde(**length: Any) -> RAGraph:
    g1 = RAGraph()
    g1.add_generation(0, prompt="Generate a hypothesis for {input}.", output="hypopara", **length)
    g1.add_retrieval(1, topk=5, query="hypopara", output="docs")
    g1.add_generation(2, prompt="Answer {query} using {docs}.", **length)
    g1.add_edge(START, 0)
    g1.add_edge(0, 1)
    g1.add_edge(1, 2)
    g1.add_edge(2, END)
    return g1


def multistep(*, on_loop_limit: OnLoopLimit = "raise", **length: Any) -> RAGraph:
    g2 = RAGraph(on_loop_limit=on_loop_limit)
    g2.add_generation(
        0, prompt="Decompose {input} into subquestions.", output="subquestion", **length
    )
    g2.add_retrieval(1, topk=2, query="subquestion", output="docs")
    g2.add_generation(2, prompt="Answer {subquestion} using {docs}.", **length)
    g2.add_edge(START, 0)
    g2.add_edge(0, 1)
    g2.add_edge(1, 2)
    g2.add_edge(2, lambda s: 1 if s.get("subquestion") else END)
    return g2


def library() -> DocumentIndex:
    index = DocumentIndex(IndexSpec(len(vector_of("x"))))
    texts = [f"Text {number} of the library." for number in range(20)]
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    index.add(documents, np.stack([vector_of(text) for text in texts]))
    return index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny language model."""
    made = tmp_path_factory.mktemp("model")
    model().save_pretrained(made)
    tokenizer().save_pretrained(made)
    return str(made)


def answers(server: Server, *requests: tuple[str, RAGraph]) -> list[Any]:
    """Return the answers of requests, in their order."""
    with server:
        ids = [server.add_request(*request) for request in requests]
        found = [server.result(id, 60) for id in ids]
        become_idle(server)
    return found


def test_the_listing_runs_to_its_answers(folder: str) -> None:
    s = Server(generator=folder, index=library(), embedder=FakeEngine(), max_loops=2)
    asked = [
        ("What is RAG?", hyde(max_tokens=4)),
        ("Compare RAG with long-context models.", multistep(on_loop_limit="end", max_tokens=4)),
    ]
    with pytest.warns(LoopLimitWarning, match="as often as max_loops"):
        found = answers(s, *asked)
    assert [type(answer) for answer in found] == [str, str]


def echoing(**options: Any) -> Server:
    return Server(
        llm=str.upper, index=lambda query, k: [f"{query} {n}" for n in range(k)], **options
    )


def test_the_query_is_what_the_request_asks() -> None:
    with echoing() as s:
        answer = s.result(s.add_request("RAG", hyde()), 20)
    assert answer.startswith("ANSWER RAG USING [1] GENERATE A HYPOTHESIS FOR RAG. 0")
    assert len(answer.split("GENERATE")) == 6


def test_a_loop_at_its_bound_ends_with_its_last_value() -> None:
    with pytest.warns(LoopLimitWarning, match=r"branch '2\?' ended it"):
        (answer,) = answers(echoing(max_loops=3), ("it", multistep(on_loop_limit="end")))
    assert answer.startswith("ANSWER DECOMPOSE IT INTO SUBQUESTIONS. USING")


def test_without_a_word_a_loop_at_its_bound_is_an_error() -> None:
    with pytest.raises(GraphError, match="a loop turned too often"):
        answers(echoing(max_loops=3), ("it", multistep()))


def test_a_loop_that_ends_by_itself_warns_of_nothing() -> None:
    graph = RAGraph(on_loop_limit="end").add_generation(0, prompt="{input}", output="text")
    graph.add_edge(START, 0).add_edge(0, lambda s: END if s["text"] else 0)
    with echoing(max_loops=1) as s:
        assert s.result(s.add_request("it", graph), 20) == "IT"


def test_a_query_that_a_stage_writes_is_that_value() -> None:
    graph = RAGraph().add_generation(0, prompt="{input}!", output="query")
    graph.add_generation(1, prompt="Find {query}.")
    graph.add_edge(START, 0).add_edge(0, 1).add_edge(1, END)
    with echoing() as s:
        assert s.result(s.add_request("it", graph), 20) == "FIND IT!."


def test_a_graph_with_inputs_of_its_own_has_no_query() -> None:
    graph = RAGraph(inputs="question").add_generation(0, prompt="{query}")
    graph.add_edge(START, 0).add_edge(0, END)
    with echoing() as s, pytest.raises(GraphError, match="reads 'query'"):
        s.add_request("it", graph)


def test_a_limit_is_told_in_the_text_of_a_graph() -> None:
    graph = multistep(on_loop_limit="end")
    assert format(graph).startswith("ragraph(input)  on_loop_limit=end\n")
    assert parse(format(graph), references(graph)) == graph.freeze()
    assert pickle.loads(pickle.dumps(hyde().freeze())) == hyde().freeze()


def test_another_way_to_end_is_refused() -> None:
    with pytest.raises(GraphError, match=r"on_loop_limit.*valid: 'raise', 'end'"):
        RAGraph(on_loop_limit="stop")  # pyright: ignore[reportArgumentType]


def test_a_server_has_one_default_language_model() -> None:
    with pytest.raises(ConfigError, match="one default language model"):
        Server(llm=str.upper, generator=str.lower)
