"""A local model's method that is replaced after its first use runs where its caller is."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cross_encoders import cross_encoder, reranked, reranker_of
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_rag_accel import RagAccelEmbeddings, accelerate, activate
from langchain_rag_accel.leaf_table import EXPLANATION
from rag_accel import Accelerator

WHERE = pytest.mark.parametrize("where", ["instance", "class", "subclass"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cross_encoder(tmp_path_factory.mktemp("models") / "one")


def replace(
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    where: str,
    call: Callable[[Any], Any],
    name: str = "predict",
) -> None:
    """Have a model make something else of what it is given."""

    def method(self: Any, given: Any, **_: Any) -> Any:
        return call(given)

    kind = type(model)
    if where == "instance":
        monkeypatch.setattr(model, name, lambda given, **_: call(given))
    elif where == "class":
        monkeypatch.setattr(kind, name, method)
    else:
        monkeypatch.setattr(model, "__class__", type("Own", (kind,), {name: method}))


@WHERE
def test_predict_is_seen_at_the_next_call(
    model: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    reranker = reranker_of(model)
    with activate(accelerator):
        old = reranked(reranker, [1])
        assert "share batches" in EXPLANATION.of(reranker, accelerator)
        replace(monkeypatch, model.client, where, lambda pairs: np.arange(len(pairs)))
        ((first, second, third),) = reranked(reranker, [1])
    assert [one.metadata["number"] for one in (first, second, third)] == [11, 10, 9]
    assert old != [[first, second, third]]


@WHERE
def test_predict_runs_in_the_callers_thread(
    model: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    reranker = reranker_of(model)
    seen: list[int] = []

    def predict(pairs: Any) -> Any:
        seen.append(threading.get_ident())
        return np.zeros(len(pairs))

    with activate(accelerator):
        reranked(reranker, [1])
        replace(monkeypatch, model.client, where, predict)
        reranked(reranker, [1])
    assert seen == [threading.get_ident()]


def test_the_libraries_own_runs_again_once_it_is_back(
    model: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = reranker_of(model)
    plain = reranked(reranker, [1, 2])
    with activate(accelerator):
        replace(monkeypatch, model.client, "instance", lambda pairs: np.arange(len(pairs)))
        reranked(reranker, [1])
        monkeypatch.undo()
        assert reranked(reranker, [1, 2]) == plain
        assert "share batches" in EXPLANATION.of(reranker, accelerator)


@pytest.fixture
def recognised(embeddings: RagAccelEmbeddings) -> HuggingFaceEmbeddings:
    """Return LangChain's embeddings with a copy of the packaged model."""
    made = HuggingFaceEmbeddings.model_construct(model_name="packaged")
    made._client = copy.deepcopy(embeddings.model)
    return made


@WHERE
def test_encode_is_seen_at_the_next_call_and_runs_in_the_callers_thread(
    recognised: HuggingFaceEmbeddings,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    fast = accelerate(recognised, accelerator=accelerator)
    old = fast.embed_query("x")
    seen: list[int] = []

    def encode(texts: list[str]) -> Any:
        seen.append(threading.get_ident())
        return np.full((len(texts), 2), len(texts), dtype=np.float32)

    replace(monkeypatch, recognised._client, where, encode, "encode")
    assert fast.embed_documents(["a", "b", "c"]) == [[3.0, 3.0]] * 3
    assert seen == [threading.get_ident()]
    monkeypatch.undo()
    assert np.allclose(fast.embed_query("x"), old, atol=1e-6)
