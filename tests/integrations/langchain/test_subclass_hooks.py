"""A class that keeps, restricts or refuses its subclasses is accelerated without their notice."""

from __future__ import annotations

import logging
from abc import ABCMeta
from typing import Any, ClassVar

import pytest
from langchain_core.embeddings import Embeddings
from lc_fakes import FakeEmbeddings, SyncChat, SyncRetriever

from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator


class Registered(FakeEmbeddings):
    """Keeps its subclasses by name, and refuses a second one of a name."""

    by_name: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__name__ in Registered.by_name:
            raise TypeError(f"there is a class {cls.__name__}")
        Registered.by_name[cls.__name__] = cls


class First(Registered):
    """One of the subclasses."""


class Sealed(FakeEmbeddings):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("sealed")


class Tagged(SyncRetriever):
    """A pydantic model whose subclasses have to say something."""

    tags_seen: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, tag: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Tagged.tags_seen.append(tag)


class TaggedOne(Tagged, tag="one"):
    """One of the subclasses."""


class Noted(SyncChat):
    """A pydantic model that keeps its subclasses by pydantic's own hook."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        Noted.seen.append(cls.__name__)


class NotedOne(Noted):
    """One of the subclasses."""


class Final(ABCMeta):
    """Refuses classes that are made of one of its own."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **kwargs: Any
    ) -> Any:
        if any(isinstance(base, Final) for base in bases):
            raise TypeError(f"{name} is final")
        return super().__new__(cls, name, bases, body, **kwargs)


class FinalEmbeddings(Embeddings, metaclass=Final):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(len(text))]


def steps(accelerator: Accelerator) -> int:
    engines: Any = accelerator.metrics.snapshot()["engines"]
    return sum(engine["steps"] for engine in engines.values())


@pytest.mark.parametrize("cls", [First, Sealed])
def test_what_a_class_does_with_subclasses_is_not_done_with_ours(
    accelerator: Accelerator, cls: type[FakeEmbeddings]
) -> None:
    fast = accelerate(cls(), accelerator=accelerator)
    assert isinstance(fast, cls)
    assert fast.embed_query("a") == cls().embed_query("a")
    assert steps(accelerator) == 1
    assert Registered.by_name == {"First": First}


def test_a_model_whose_subclasses_need_an_argument_is_accelerated(accelerator: Accelerator) -> None:
    fast = accelerate(TaggedOne(), accelerator=accelerator)
    assert fast.invoke("a") == TaggedOne().invoke("a")
    assert steps(accelerator) == 1
    assert Tagged.tags_seen == ["one"]


def test_the_hook_of_pydantic_does_not_see_ours(accelerator: Accelerator) -> None:
    fast = accelerate(NotedOne(), accelerator=accelerator)
    assert fast.invoke("a").content == NotedOne().invoke("a").content
    assert steps(accelerator) == 1
    assert Noted.seen == ["NotedOne"]


def test_an_object_whose_class_cannot_have_a_subclass_is_returned_as_it_is(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    plain = FinalEmbeddings()
    with caplog.at_level(logging.WARNING, "rag_accel"):
        assert accelerate(plain, accelerator=accelerator) is plain
        assert accelerate(FinalEmbeddings()).embed_query("abc") == [3.0]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "FinalEmbeddings cannot be accelerated" in said
    assert "FinalEmbeddings is final" in said
    first = explain(plain).splitlines()[0]
    assert first.startswith("FinalEmbeddings is not accelerated")
    assert "FinalEmbeddings is final" in first
