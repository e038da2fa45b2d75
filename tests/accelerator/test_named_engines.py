"""Engines may be named as they are registered, and an index stands for its engine."""

from __future__ import annotations

from unittest.mock import MagicMock

import numpy as np
import pytest

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.engine_api import Document
from rag_accel.engines import DocumentIndex, IndexSpec


def answering(prompt: str = "{input}") -> RAGraph:
    graph = RAGraph().add_generation("answer", prompt)
    return graph.add_edge(START, "answer").add_edge("answer", END)


def test_an_engine_is_made_from_its_name() -> None:
    passage = "Context:\n[1] The bridge opened in 1932.\n\nQuestion: When did the bridge open?"
    with Accelerator(llm="extractive", strict=True) as accelerator:
        assert accelerator.run(answering(), input=passage) == "The bridge opened in 1932. [1]"
        accelerator.add_engine("second", "extractive")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown plugin") as caught:
        Accelerator(llm="extractiv")
    assert caught.value.hint == "did you mean 'extractive'?"


@pytest.mark.parametrize("name", ["remote", "retrieval"])
def test_an_engine_that_needs_arguments_is_not_made_from_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match="needs arguments") as caught:
        Accelerator(llm=name)
    assert caught.value.where == "llm="


def test_an_index_is_given_in_place_of_the_engine_that_searches_it() -> None:
    index = DocumentIndex(IndexSpec(dimension=2))
    index.add([Document("1", "one"), Document("2", "two")], np.eye(2, dtype=np.float32))
    graph = RAGraph().add_retrieval("search", top_k=1)
    graph.add_edge(START, "search").add_edge("search", END)

    def embedder(texts: list[str]) -> list[list[float]]:
        return [[0.0, 1.0] for _ in texts]

    with Accelerator(index=index, embedder=embedder, strict=True) as accelerator:
        (found,) = accelerator.run(graph, input="anything")
    assert found.document.id == "2"


def test_an_object_that_answers_to_any_name_is_a_callable() -> None:
    with Accelerator(llm=MagicMock(return_value="said"), strict=True) as accelerator:
        assert accelerator.run(answering(), input="x") == "said"
