"""What a graph retrieval makes of odd names, odd graphs and input that cannot be right."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from accel_harness import opened

from rag_accel import END, START, Accelerator, ConfigError, GraphError, RAGraph
from rag_accel.engines import (
    CallableEmbeddingEngine,
    KnowledgeEngine,
    MemoryGraph,
)
from rag_accel.errors import EngineOutputError, GraphLinkError

TRIPLES = [("ada", "knows", "charles"), ("charles", "knows", "mary")]
#: Each holds a word of its own, by which a question can mean it.
ODD_NAMES = (
    "comma, first",
    "arrow -> second",
    "two\nthird lines",
    'it\'s "fourth" `tick`',
    "'}) DETACH DELETE (fifth) //",
    "{sixth}",
    "\U0001f600 seventh \ud800",
)


def embed(texts: Sequence[str]) -> Any:
    """Return vectors that count letters: ``[len(texts), 64], float32``."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for letter in text:
            row[ord(letter) % 64] += 1
    return rows


def embedder() -> CallableEmbeddingEngine:
    return CallableEmbeddingEngine(embed, pure=True)


def only(**options: Any) -> RAGraph:
    """Return a graph of one stage, from a question and names of entities to paths."""
    graph = RAGraph(("input", "names")).add_graph_retrieval("facts", **options)
    return graph.add_edge(START, "facts").add_edge("facts", END)


def paths(accelerator: Accelerator, question: str = "ada", names: Any = (), **options: Any) -> Any:
    """Return the texts of paths, best first, linked by words unless otherwise asked."""
    options = {"link": "words", "hops": 1, "direction": "out", **options}
    return [hit.path.text for hit in accelerator.run(only(**options), input=question, names=names)]


# Names and graphs.


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_reaches_the_prompt_as_it_is(name: str) -> None:
    graph = RAGraph(("input", "names")).add_graph_retrieval("facts", keywords="names", hops=1)
    graph.add_generation("answer", prompt="{facts}")
    graph.add_edge(START, "facts").add_edge("facts", "answer").add_edge("answer", END)
    told = MemoryGraph([(name, "is", "here")])
    with opened(graph=told, embedder=embedder(), llm=lambda prompt: prompt) as acc:
        assert f"{name} -> is -> here" in acc.run(graph, input="x", names=[name])


def test_a_relation_given_as_a_text_is_one_relation() -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        assert paths(acc, relations="knows") == ["ada -> knows -> charles"]


@pytest.mark.parametrize("names", [None, [], "", ", ,\n", ["nobody"], [None], "'; DROP (n)"])
def test_keywords_that_name_nobody_find_nothing(names: Any) -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        assert paths(acc, keywords="names", names=names) == []


# Keywords.


@pytest.mark.parametrize("name", [" ada", "ada ", "\tada\x1f", "\nada", "ada\n", " "])
def test_a_name_with_blanks_around_it_is_reached_by_a_list(name: str) -> None:
    triples = [(name, "is", "here"), ("ada", "is", "there")]
    with opened(graph=MemoryGraph(triples), embedder=embedder()) as acc:
        assert paths(acc, keywords="names", names=[name], seeds=1) == [f"{name} -> is -> here"]


def test_blanks_around_a_keyword_are_none_of_a_name_that_has_none() -> None:
    triples = [("ada", "is", "here"), (" ada", "is", "there")]
    with opened(graph=MemoryGraph(triples), embedder=embedder()) as acc:
        assert paths(acc, keywords="names", names="x, ada", seeds=1) == ["ada -> is -> here"]
        assert paths(acc, keywords="names", names=["\nada "]) == ["ada -> is -> here"]


@pytest.mark.parametrize("option", ["top_k", "hops", "seeds", "fan_out", "max_paths"])
def test_a_bound_that_no_database_can_be_told_is_named(option: str) -> None:
    with pytest.raises(GraphError, match=option):
        only(**{option: 2**70})


def kind(value: Any) -> str:
    """Return a name of a parameter that is the same in every process."""
    return type(value).__name__


@pytest.mark.parametrize("names", [5, b"ada", {"ada": 1}, object()], ids=kind)
def test_keywords_of_another_type_are_a_named_error_of_that_request_alone(names: Any) -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        with pytest.raises(GraphLinkError, match="no keywords") as caught:
            paths(acc, keywords="names", names=names)
        assert caught.value.found == type(names).__name__
        assert paths(acc, keywords="names", names="ada") == ["ada -> knows -> charles"]


# What is given to a stage and to an accelerator.


@pytest.mark.parametrize("relations", [["r", 1], [None], [b"r"]], ids=str)
def test_relations_that_are_no_texts_are_a_named_error(relations: Any) -> None:
    with pytest.raises(GraphError) as caught:
        only(relations=relations)
    assert caught.value.where == "relations of stage 'facts'"


def test_a_stage_without_a_graph_names_what_is_missing() -> None:
    with opened(embedder=embedder()) as acc, pytest.raises(GraphError) as caught:
        paths(acc)
    assert caught.value.offenders == (
        "known-engines: stage 'facts' names engine 'graph'; valid: embedder",
    )


@pytest.mark.parametrize("given", [5, TRIPLES, tuple(TRIPLES), {"x": MemoryGraph()}], ids=kind)
def test_what_is_no_graph_is_refused_with_what_to_give(given: Any) -> None:
    with pytest.raises(ConfigError, match="cannot serve as an engine") as caught:
        Accelerator(graph=given)
    assert caught.value.where == "graph="
    assert "MemoryGraph(triples)" in str(caught.value)


# Errors while a request runs.


def test_vectors_of_paths_of_another_dimension_are_a_named_error() -> None:
    def uneven(texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 4 if "->" in texts[0] else 3))

    with (
        opened(
            graph=MemoryGraph(TRIPLES), embedder=CallableEmbeddingEngine(uneven, pure=True)
        ) as acc,
        pytest.raises(EngineOutputError, match="dimension"),
    ):
        paths(acc)


def test_two_tenants_asked_side_by_side_find_their_own_paths() -> None:
    graphs = {"x": MemoryGraph([("ada", "r", "mine")]), "y": MemoryGraph([("ada", "r", "theirs")])}
    found: dict[str, list[Any]] = {name: [] for name in graphs}

    def ask(acc: Accelerator, name: str) -> None:
        found[name] += [paths(acc) for _ in range(20)]

    with (
        opened(graph=KnowledgeEngine(graphs), embedder=embedder(), namespace="x") as one,
        opened(graph=KnowledgeEngine(graphs), embedder=embedder(), namespace="y") as other,
    ):
        threads = [
            threading.Thread(target=ask, args=pair) for pair in ((one, "x"), (other, "y")) * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"x": [["ada -> r -> mine"]] * 40, "y": [["ada -> r -> theirs"]] * 40}
