"""Accelerating a leaf object gives an instance of its class that shares its state."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.retrievers import EnsembleRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumpd
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from lc_fakes import (
    AsyncChat,
    FakeEmbeddings,
    FakeLLM,
    OldRetriever,
    SyncChat,
    SyncRetriever,
)
from lc_programs import QUESTION

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import Coverage, coverage
from rag_accel import Accelerator


def _store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(FakeEmbeddings())
    store.add_texts([f"text {number}" for number in range(8)])
    return store


MADE: dict[str, tuple[Callable[[], Any], type]] = {
    "chat model": (AsyncChat, BaseChatModel),
    "completion model": (FakeLLM, FakeLLM),
    "retriever": (SyncRetriever, BaseRetriever),
    "old retriever": (OldRetriever, BaseRetriever),
    "store retriever": (lambda: _store().as_retriever(), BaseRetriever),
    "composite retriever": (
        lambda: EnsembleRetriever(retrievers=[SyncRetriever()], weights=[1.0]),
        BaseRetriever,
    ),
    "embeddings": (FakeEmbeddings, Embeddings),
    "store": (_store, VectorStore),
    "compressor": (lambda: LLMChainExtractor.from_llm(SyncChat()), BaseDocumentCompressor),
}


@pytest.mark.parametrize("name", MADE)
def test_a_twin_is_an_instance_of_the_originals_class(name: str, accelerator: Accelerator) -> None:
    make, base = MADE[name]
    original = make()
    made = accelerate(original, accelerator=accelerator)
    assert made is not original
    assert isinstance(made, type(original))
    assert isinstance(made, base)
    assert type(made).__name__ == type(original).__name__
    assert type(made).__module__ == type(original).__module__
    assert made.__dict__ is original.__dict__


def _scheduled(meter: Coverage) -> dict[str, int]:
    assert meter.passed_by == 0, str(meter)
    return {row.kind: row.scheduled for row in meter.rows()}


async def test_every_call_of_a_twin_is_scheduled(accelerator: Accelerator) -> None:
    model = accelerate(AsyncChat(), accelerator=accelerator)
    with coverage() as meter:
        model.invoke("x")
        await model.ainvoke("x")
        list(model.stream("x"))
        _ = [chunk async for chunk in model.astream("x")]
        model.batch(["x", "y"])
        await model.abatch(["x", "y"])
        model.generate_prompt([QUESTION.invoke({"input": "x"})])
    assert _scheduled(meter) == {"chat model": 9}


async def test_what_a_twin_holds_is_scheduled_too(accelerator: Accelerator) -> None:
    retriever = accelerate(_store().as_retriever(), accelerator=accelerator)
    with coverage() as meter:
        retriever.invoke("x")
        await retriever.ainvoke("x")
    assert _scheduled(meter) == {"retriever": 2, "embeddings": 2}


async def test_a_store_that_is_only_async_is_never_called_synchronously(
    accelerator: Accelerator,
) -> None:
    class OnlyAsync(InMemoryVectorStore):
        def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("called synchronously")

        async def asimilarity_search_with_score(self, query: str, *args: Any, **kwargs: Any) -> Any:
            return [(document, 0.5) for document in SyncRetriever().invoke(query)]

        def _select_relevance_score_fn(self) -> Any:
            return float

    fast = accelerate(OnlyAsync(FakeEmbeddings()), accelerator=accelerator)
    retriever = fast.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.1}
    )
    assert len(await retriever.ainvoke("x")) == 2


def test_a_change_through_one_is_seen_through_the_other(accelerator: Accelerator) -> None:
    original = SyncChat()
    made = accelerate(original, accelerator=accelerator)
    original.temperature = 0.7
    assert made.temperature == 0.7
    made.temperature = 0.9
    assert original.temperature == 0.9


def test_a_twin_can_be_made_for_another_accelerator(accelerator: Accelerator) -> None:
    first = accelerate(SyncChat(), accelerator=accelerator)
    with Accelerator(strict=True) as other:
        second = accelerate(first, accelerator=other)
        assert second.__dict__ is first.__dict__
        second.invoke("x")
        assert "engines" in other.metrics.snapshot()
    assert "engines" not in accelerator.metrics.snapshot()


def test_a_twin_and_a_dropped_accelerator_are_collected() -> None:
    accelerator = Accelerator(strict=True)
    gone = weakref.ref(accelerator)
    thread = accelerator._driver._thread
    made = accelerate(SyncChat(), accelerator=accelerator)
    made.invoke("x")
    del made, accelerator
    gc.collect()
    assert gone() is None
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_twin_keeps_the_original_alive_and_never_frees_what_they_share(
    accelerator: Accelerator,
) -> None:
    freed: list[str] = []

    class Owning(FakeEmbeddings):
        def __del__(self) -> None:
            freed.append("freed")

    original = Owning()
    made = accelerate(original, accelerator=accelerator)
    del original
    gc.collect()
    assert freed == []
    copied = copy.copy(made)
    del made
    gc.collect()
    assert freed == ["freed"]  # the original's own, when nothing needs it any more
    assert copied.embed_query("x")
    del copied
    gc.collect()


def test_slots_are_shared_as_far_as_they_can_be(accelerator: Accelerator) -> None:
    class Slotted(FakeEmbeddings):
        __slots__ = ("__private", "public")

        def __init__(self) -> None:
            super().__init__()
            self.public, self.__private = 1, 2

        def both(self) -> tuple[int, int]:
            return self.public, self.__private

    assert accelerate(Slotted(), accelerator=accelerator).both() == (1, 2)


@pytest.mark.parametrize("name", MADE)
def test_a_dumped_twin_is_the_dumped_original(name: str, accelerator: Accelerator) -> None:
    original = MADE[name][0]()
    made = accelerate(original, accelerator=accelerator)
    dumped, expected = dumpd(made), dumpd(original)
    for one in (dumped, expected):
        one.pop("repr", None)  # holds the object's address
    assert dumped == expected


@pytest.mark.parametrize("name", ["chat model", "retriever", "embeddings", "store"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copied_twin_is_a_copy(
    name: str, copied: Callable[[Any], Any], accelerator: Accelerator
) -> None:
    made = accelerate(MADE[name][0](), accelerator=accelerator)
    other = copied(made)
    assert type(other) is type(made)
    assert other.__dict__ is not made.__dict__
    other.__dict__["only_there"] = 1
    assert "only_there" not in made.__dict__


@pytest.mark.parametrize("name", ["chat model", "completion model", "retriever", "old retriever"])
def test_a_pickled_twin_arrives_accelerated_with_its_options(name: str) -> None:
    with Accelerator(strict=True, namespace="tenant") as accelerator:
        made = accelerate(MADE[name][0](), accelerator=accelerator)
        arrived = pickle.loads(pickle.dumps(made))
        own = type(arrived).__rag_accel_own__
        with own:
            assert own.options == accelerator.options
            assert type(arrived).__mro__[1] is type(made).__mro__[1]
            with coverage() as meter:
                arrived.invoke("x")
        assert meter.passed_by == 0
