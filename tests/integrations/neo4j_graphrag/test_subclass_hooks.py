"""Classes that restrict or refuse their subclasses, for neo4j-graphrag."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.retrievers import VectorRetriever
from ng_kit import HashEmbedder, ScriptedDriver, ScriptedModel, digest

from neo4j_graphrag_rag_accel import accelerate, explain
from rag_accel import Accelerator


class SealedEmbedder(HashEmbedder):
    """Refuses any subclass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("sealed")


class FinalMeta(type(GraphRAG)):
    """Refuses classes that are made of one of its own."""

    def __new__(cls, name: str, bases: tuple[type, ...], *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(base, FinalMeta) for base in bases):
            raise TypeError(f"{name} is final")
        return super().__new__(cls, name, bases, *args, **kwargs)


class FinalProgram(GraphRAG, metaclass=FinalMeta):
    """Cannot have a subclass."""


def test_what_a_class_does_with_subclasses_is_not_done_with_ours(accelerator: Accelerator) -> None:
    fast = accelerate(SealedEmbedder(), accelerator=accelerator)
    assert isinstance(fast, SealedEmbedder)
    assert fast.embed_query("a") == HashEmbedder().embed_query("a")


def test_a_program_whose_class_cannot_have_a_subclass_is_returned_as_it_is(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = VectorRetriever(ScriptedDriver(), "facts", HashEmbedder())
    plain = FinalProgram(retriever, ScriptedModel(digest))
    with caplog.at_level(logging.WARNING, "rag_accel"):
        assert accelerate(plain, accelerator=accelerator) is plain
    assert "FinalProgram is final" in caplog.text
    assert plain.search("a").answer
    assert explain(plain).startswith("FinalProgram is not accelerated")
