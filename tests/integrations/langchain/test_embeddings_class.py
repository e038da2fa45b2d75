"""The embeddings class passes LangChain's own suites and equals the model's ``encode``."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from idle_accelerators import soon_idle
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

import langchain_rag_accel
from langchain_rag_accel import RagAccelEmbeddings, accelerate
from rag_accel import Accelerator, ConfigError

TEXTS = [f"text number {number}" for number in range(10)]


class _Shared:
    """Give the suites the model that the session has loaded, on a strict accelerator."""

    @pytest.fixture(autouse=True)
    def shared(self, embeddings: RagAccelEmbeddings, accelerator: Accelerator) -> None:
        self.params = {"model": embeddings.model, "accelerator": accelerator}

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return RagAccelEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return self.params


class TestUnit(_Shared, EmbeddingsUnitTests):
    pass


class TestIntegration(_Shared, EmbeddingsIntegrationTests):
    pass


@pytest.fixture
def ours(embeddings: RagAccelEmbeddings, accelerator: Accelerator) -> RagAccelEmbeddings:
    """Give the packaged model on a strict accelerator."""
    return embeddings.scheduled_by(accelerator)


async def test_vectors_are_those_of_encode(ours: RagAccelEmbeddings) -> None:
    expected = ours.model.encode(TEXTS)
    assert np.allclose(ours.embed_documents(TEXTS), expected, atol=1e-6)
    assert np.allclose(await ours.aembed_documents(TEXTS), expected, atol=1e-6)
    assert np.allclose(ours.embed_query(TEXTS[0]), expected[0], atol=1e-6)
    assert np.allclose(await ours.aembed_query(TEXTS[0]), expected[0], atol=1e-6)


def test_queries_and_documents_may_be_encoded_differently(
    ours: RagAccelEmbeddings, accelerator: Accelerator
) -> None:
    both = RagAccelEmbeddings(
        ours.model,
        encode_kwargs={"prompt": "passage: "},
        query_encode_kwargs={"prompt": "query: "},
        accelerator=accelerator,
    )
    for got, prompt in ((both.embed_query("x"), "query: "), (both.embed_documents(["x"])[0], None)):
        expected = ours.model.encode(["x"], prompt=prompt or "passage: ")[0]
        assert np.allclose(got, expected, atol=1e-6)


async def test_concurrent_queries_share_steps(
    ours: RagAccelEmbeddings, accelerator: Accelerator
) -> None:
    ours.embed_query("warm up")
    await asyncio.gather(*(ours.aembed_query(f"query {number}") for number in range(32)))
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot()["engines"]
    (engine,) = engines.values()
    assert engine["items"] == 33
    assert engine["steps"] < 17


def test_accelerating_them_again_changes_nothing_or_the_accelerator(
    ours: RagAccelEmbeddings, accelerator: Accelerator
) -> None:
    assert accelerate(ours) is ours
    with Accelerator(strict=True) as other:
        moved = accelerate(ours, accelerator=other)
        assert moved.model is ours.model
        moved.embed_query("x")
        assert "engines" in other.metrics.snapshot()
    assert "engines" not in accelerator.metrics.snapshot()


def test_bad_arguments_of_encode_are_refused_by_name(ours: RagAccelEmbeddings) -> None:
    with pytest.raises(ConfigError, match=r"encode_kwargs\['precision'\]"):
        RagAccelEmbeddings(ours.model, encode_kwargs={"precision": "int8"})


async def test_what_is_no_text_is_refused_without_harm_to_others(
    ours: RagAccelEmbeddings,
) -> None:
    found = await asyncio.gather(
        ours.aembed_query("good"),
        ours.aembed_query(None),  # type: ignore[arg-type]
        ours.aembed_query("also good"),
        return_exceptions=True,
    )
    assert [isinstance(result, BaseException) for result in found] == [False, True, False]
    with pytest.raises(ValueError, match="int"):  # what encode raises
        ours.embed_documents(["good", 3])  # type: ignore[list-item]


def test_copies_and_pickles_embed_alike(ours: RagAccelEmbeddings) -> None:
    expected = ours.embed_query("x")
    assert np.allclose(copy.copy(ours).embed_query("x"), expected, atol=1e-6)
    arrived = pickle.loads(pickle.dumps(ours))
    with arrived._accelerator:
        assert np.allclose(arrived.embed_query("x"), expected, atol=1e-6)


def test_public_names_are_sorted_and_importable() -> None:
    names = langchain_rag_accel.__all__
    assert names == sorted(names)
    assert all(inspect.getdoc(getattr(langchain_rag_accel, name)) for name in names)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = langchain_rag_accel.nothing_of_the_kind
