"""Fake results are deterministic and have the types the seam promises."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Document,
    GenerationInput,
    IngestBatch,
    Message,
    RerankBatch,
    SearchQuery,
    TextBatch,
)
from rag_accel.testing import compute, vector_of


@given(st.lists(st.text()))
def test_a_text_batch_gives_one_unit_vector_per_text(texts: list[str]) -> None:
    vectors = compute(TextBatch(tuple(texts)))
    assert vectors.shape == (len(texts), 8)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


@given(st.text(), st.text())
def test_different_texts_have_different_vectors(left: str, right: str) -> None:
    assert np.array_equal(vector_of(left), vector_of(right)) == (left == right)


def test_text_that_is_no_valid_unicode_has_a_vector() -> None:
    assert vector_of("\ud800").shape == (8,)


def test_a_vector_is_the_same_in_every_process_and_version() -> None:
    expected = [-0.226658, 0.411118, 0.430514, 0.475039, -0.099978, 0.262176, 0.261885, 0.470412]
    np.testing.assert_allclose(vector_of("a"), expected, atol=1e-6)


def test_a_search_finds_k_documents_best_first() -> None:
    found = compute(SearchQuery(vector_of("q"), k=3))
    assert len({hit.document.id for hit in found}) == 3
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


def test_a_search_depends_on_its_vector_and_its_filter() -> None:
    vector = vector_of("q")
    plain = compute(SearchQuery(vector, k=2))
    assert plain == compute(SearchQuery(vector.astype(np.float64), k=2))
    assert plain != compute(SearchQuery(vector_of("other"), k=2))
    assert plain != compute(SearchQuery(vector, k=2, where={"year": 2024}))


def test_reranking_orders_by_shared_words_and_keeps_the_best() -> None:
    documents = tuple(Document(str(i), text) for i, text in enumerate(["c", "a b", "a"]))
    found = compute(RerankBatch("A B", documents, top_n=2))
    assert [(hit.document.id, hit.score) for hit in found] == [("1", 2.0), ("2", 1.0)]


def test_reranking_without_top_n_keeps_all_and_the_order_of_ties() -> None:
    documents = tuple(Document(str(i), "same") for i in range(3))
    assert [hit.document.id for hit in compute(RerankBatch("q", documents))] == ["0", "1", "2"]


def test_ingestion_returns_the_ids_of_its_documents() -> None:
    assert compute(IngestBatch((Document("1", "a"), Document("2", "b")), None)) == ("1", "2")


def test_a_generation_repeats_the_last_message_and_counts_words() -> None:
    found = compute(GenerationInput((Message("system", "be kind"), Message("user", "say hi"))))
    assert (found.text, found.prompt_tokens, found.completion_tokens) == ("reply to: say hi", 4, 4)


def test_a_generation_without_messages_is_no_error() -> None:
    assert compute(GenerationInput(())).text == "reply to: "


def test_other_payloads_come_back_as_they_are() -> None:
    payload = object()
    assert compute(payload) is payload
