"""What replaces a method in a class is seen through twins made before, and so is its return."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from langchain_core.documents import Document
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from lc_fakes import FakeEmbeddings, SyncChat

from langchain_rag_accel import accelerate
from rag_accel import Accelerator


class Embeddings(FakeEmbeddings):
    """A class whose methods stand in a base class."""


def said(text: str) -> ChatResult:
    from langchain_core.messages import AIMessage

    return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def store() -> InMemoryVectorStore:
    made = InMemoryVectorStore(FakeEmbeddings())
    made.add_texts(["one", "two"])
    return made


def patched_embed(self: Any, text: str) -> list[float]:
    return [7.0]


def patched_generate(self: Any, *args: Any, **kwargs: Any) -> ChatResult:
    return said("patched")


def patched_documents(self: Any, *args: Any, **kwargs: Any) -> list[Document]:
    return [Document("patched")]


CASES: dict[str, tuple[Callable[[], Any], type, str, Any, Callable[[Any], Any]]] = {
    "embed_query of a base": (
        Embeddings,
        FakeEmbeddings,
        "embed_query",
        patched_embed,
        lambda made: made.embed_query("a"),
    ),
    "a static method": (
        FakeEmbeddings,
        FakeEmbeddings,
        "embed_query",
        staticmethod(lambda text: [3.0]),
        lambda made: made.embed_query("a"),
    ),
    "_generate": (
        SyncChat,
        SyncChat,
        "_generate",
        patched_generate,
        lambda made: made.invoke("a").content,
    ),
    "similarity_search": (
        store,
        InMemoryVectorStore,
        "similarity_search",
        patched_documents,
        lambda made: made.similarity_search("a"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_class_patched_after_its_twin_was_made_is_seen(
    name: str, accelerator: Accelerator
) -> None:
    make, cls, method, patch, ask = CASES[name]
    plain = make()
    made = accelerate(plain, accelerator=accelerator)
    before = ask(made)
    with mock.patch.object(cls, method, patch):
        patched = ask(plain)
        assert ask(made) == patched != before
    assert ask(made) == before == ask(plain)


async def test_the_sync_method_is_seen_where_the_async_one_is_inherited(
    accelerator: Accelerator,
) -> None:
    made = accelerate(FakeEmbeddings(), accelerator=accelerator)
    before = await made.aembed_query("a")
    with mock.patch.object(FakeEmbeddings, "embed_query", patched_embed):
        assert await made.aembed_query("a") == [7.0]
    assert await made.aembed_query("a") == before


def test_a_mock_in_the_class_of_a_hosted_embedder_keeps_the_server_from_being_asked(
    accelerator: Accelerator,
) -> None:
    nowhere: Any = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none", "max_retries": 0}
    made = accelerate(OpenAIEmbeddings(**nowhere), accelerator=accelerator)
    with mock.patch.object(OpenAIEmbeddings, "embed_query", return_value=[1.0]) as found:
        assert made.embed_query("a") == [1.0]
    found.assert_called_once_with("a")


def test_classes_patched_by_us_make_nothing_again(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs come and go, and their interception of all classes with them."""
    from rag_accel.interception import twins
    from rag_accel.interception.patches import Interception

    made = accelerate(FakeEmbeddings(), accelerator=accelerator)
    before = made.embed_query("a")

    def never(*_: Any) -> Any:
        raise AssertionError("methods were made again")

    monkeypatch.setattr(twins._Followed, "_made_of", never)
    held = Interception()
    assert made.embed_query("a") == before
    del held
    gc.collect()
    assert made.embed_query("a") == before


def test_a_twins_class_goes_with_its_last_twin(accelerator: Accelerator) -> None:
    made = accelerate(FakeEmbeddings(), accelerator=accelerator)
    with mock.patch.object(FakeEmbeddings, "embed_query", patched_embed):
        made.embed_query("a")
    gone = weakref.ref(type(made))
    del made
    gc.collect()
    assert gone() is None
