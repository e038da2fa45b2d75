"""Classes that restrict or refuse their subclasses, for LlamaIndex."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest
from li_programs import HashEmbedding
from llama_index.core.query_engine import CustomQueryEngine

from llama_index_rag_accel import accelerate, explain
from rag_accel import Accelerator


class SealedEmbedding(HashEmbedding):
    """Refuses any subclass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("sealed")


class Echo(CustomQueryEngine):
    """A program that keeps its subclasses."""

    seen: ClassVar[list[type]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Echo.seen.append(cls)

    def custom_query(self, query_str: str) -> str:
        return query_str


class FinalMeta(type(CustomQueryEngine)):
    """Refuses classes that are made of one of its own."""

    def __new__(cls, name: str, bases: tuple[type, ...], *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(base, FinalMeta) for base in bases):
            raise TypeError(f"{name} is final")
        return super().__new__(cls, name, bases, *args, **kwargs)


class FinalEngine(CustomQueryEngine, metaclass=FinalMeta):
    """Cannot have a subclass."""

    def custom_query(self, query_str: str) -> str:
        return query_str


def test_what_a_class_does_with_subclasses_is_not_done_with_ours(accelerator: Accelerator) -> None:
    fast = accelerate(SealedEmbedding(), accelerator=accelerator)
    assert isinstance(fast, SealedEmbedding)
    assert fast.get_query_embedding("a") == HashEmbedding().get_query_embedding("a")
    assert str(accelerate(Echo(), accelerator=accelerator).query("a")) == "a"
    assert Echo.seen == []


def test_a_program_whose_class_cannot_have_a_subclass_is_returned_as_it_is(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    plain = FinalEngine()
    with caplog.at_level(logging.WARNING, "rag_accel"):
        assert accelerate(plain, accelerator=accelerator) is plain
    assert "FinalEngine is final" in caplog.text
    assert str(plain.query("a")) == "a"
    assert explain(plain).startswith("FinalEngine is not accelerated")
