"""Recognised local embeddings are computed by an owned engine, with the same vectors."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import numpy as np
import pytest
from idle_accelerators import soon_idle
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from lc_fakes import AsyncChat
from lc_programs import joined

from langchain_rag_accel import RagAccelEmbeddings, accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

TEXTS = [f"text number {number} " + "word " * (number % 7) for number in range(70)]


@pytest.fixture(scope="module")
def plain(embeddings: RagAccelEmbeddings) -> HuggingFaceEmbeddings:
    """Give the packaged model as LangChain's own embeddings."""
    made = HuggingFaceEmbeddings.model_construct(model_name="packaged")
    made._client = embeddings.model
    return made


def _embedding_engines(accelerator: Accelerator) -> dict[str, Any]:
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return {name: engine for name, engine in engines.items() if name.startswith("embedding#")}


async def test_vectors_are_those_of_the_plain_object(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    documents = plain.embed_documents(TEXTS)
    assert np.allclose(fast.embed_documents(TEXTS), documents, atol=1e-6)
    assert np.allclose(await fast.aembed_documents(TEXTS), documents, atol=1e-6)
    query = plain.embed_query("two\nlines")
    assert np.allclose(fast.embed_query("two\nlines"), query, atol=1e-6)
    assert np.allclose(await fast.aembed_query("two\nlines"), query, atol=1e-6)
    assert np.allclose(fast.embed_query(text="by name"), plain.embed_query("by name"), atol=1e-6)
    assert len(_embedding_engines(accelerator)) == 1
    assert isinstance(fast.embed_query("x"), list)
    assert isinstance(fast.embed_query("x")[0], float)


async def test_concurrent_requests_share_batches(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    store = InMemoryVectorStore(plain)
    store.add_texts(TEXTS[:20])
    model = AsyncChat()
    program = (
        store.as_retriever(search_kwargs={"k": 2})
        | RunnableLambda(joined)
        | model
        | StrOutputParser()
    )
    fast = accelerate(program, accelerator=accelerator)
    questions = [f"question number {number}" for number in range(16)]
    with coverage() as meter:
        found = await asyncio.gather(*map(fast.ainvoke, questions))
    assert found == [program.invoke(question) for question in questions]
    assert meter.passed_by == 0
    (engine,) = _embedding_engines(accelerator).values()
    assert engine["items"] == 16
    assert engine["steps"] <= 8


async def test_objects_over_one_model_share_an_engine(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    ours = RagAccelEmbeddings(plain._client, accelerator=accelerator)
    fast = accelerate(plain, accelerator=accelerator)
    assert np.allclose(fast.embed_query("x"), ours.embed_query("x"), atol=1e-6)
    with activate(accelerator):
        plain.embed_query("x")
    assert len(_embedding_engines(accelerator)) == 1


def test_a_subclass_that_changes_nothing_is_recognised(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    class Named(HuggingFaceEmbeddings):
        @property
        def title(self) -> str:
            return "mine"

    other = Named.model_construct(model_name="packaged")
    other._client = plain._client
    fast = accelerate(other, accelerator=accelerator)
    assert np.allclose(fast.embed_query("x"), plain.embed_query("x"), atol=1e-6)
    assert len(_embedding_engines(accelerator)) == 1


async def test_what_the_plain_object_refuses_is_refused_alike(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    for bad in (None, 3, ["a list"]):
        with pytest.raises(Exception) as of_plain:  # noqa: PT011 - whatever it is
            plain.embed_query(bad)  # type: ignore[arg-type]
        with pytest.raises(type(of_plain.value)) as of_fast:
            fast.embed_query(bad)  # type: ignore[arg-type]
        assert str(of_fast.value) == str(of_plain.value)
        with pytest.raises(type(of_plain.value)):
            await fast.aembed_query(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        fast.embed_query()  # type: ignore[call-arg]
    assert accelerator.bypassed == {}


def test_a_text_in_place_of_texts_means_its_letters_as_before(
    plain: HuggingFaceEmbeddings, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    assert np.allclose(fast.embed_documents("ab"), plain.embed_documents("ab"), atol=1e-6)


def test_reproducible_vectors_repeat_bit_by_bit(plain: HuggingFaceEmbeddings) -> None:
    with Accelerator(strict=True, reproducible=True) as accelerator:
        fast = accelerate(plain, accelerator=accelerator)
        together = fast.embed_documents(TEXTS[:8])
        assert [fast.embed_documents([text])[0] for text in TEXTS[:8]] == together


def test_embeddings_made_and_dropped_leave_no_engine_behind(
    embeddings: RagAccelEmbeddings,
) -> None:
    with Accelerator(strict=True) as accelerator, activate(accelerator):
        threads = threading.active_count()
        for _ in range(3):
            made = HuggingFaceEmbeddings.model_construct(model_name="packaged")
            made._client = embeddings.model
            made.embed_query("one caller after the other")
            del made
        for _ in range(1000):
            gc.collect()
            if threading.active_count() <= threads + 1:
                break
            threading.Event().wait(0.01)
        assert threading.active_count() <= threads + 1


@pytest.mark.parametrize("shown", [True, False])
async def test_a_progress_bar_is_drawn_where_the_object_wants_one(
    shown: bool, plain: HuggingFaceEmbeddings, capsys: pytest.CaptureFixture[str]
) -> None:
    embeddings = plain.model_copy(update={"show_progress": shown})
    with Accelerator(strict=True, max_batch=16) as accelerator:
        fast = accelerate(embeddings, accelerator=accelerator)
        found = fast.embed_documents(TEXTS), await fast.aembed_documents(TEXTS)
    bars = capsys.readouterr().err
    assert bars.count("5/5") == (2 if shown else 0)
    assert ("Batches" in bars) == shown
    for vectors in found:
        assert np.allclose(vectors, plain.embed_documents(TEXTS), atol=1e-6)


async def test_what_fails_under_a_progress_bar_is_told_and_leaves_nothing(
    plain: HuggingFaceEmbeddings,
) -> None:
    embeddings = plain.model_copy(update={"show_progress": True})
    bad: Any = [*TEXTS, 7]
    with Accelerator(max_batch=16) as accelerator:
        fast = accelerate(embeddings, accelerator=accelerator)
        for _ in range(2):
            with pytest.raises(Exception, match="int"):
                fast.embed_documents(bad)
        assert soon_idle(accelerator)
