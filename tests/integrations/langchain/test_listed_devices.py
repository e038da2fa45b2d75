"""Embeddings of a LangChain program on the devices that are listed as the embedder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember
from idle_accelerators import soon_idle
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from lc_programs import joined
from program_models import program_model

from langchain_rag_accel import RagAccelEmbeddings, accelerate, explain
from rag_accel import Accelerator, ConfigError, UnreadOptionWarning
from rag_accel.engines import (
    ProcessMember,
    SentenceTransformerEngine,
)

PATIENCE_S = 20.0
TEXTS = [f"text number {number} " + "word " * (number % 30) for number in range(200)]


@pytest.fixture(scope="module")
def model() -> Any:
    return program_model()


@contextmanager
def opened(**arguments: Any) -> Iterator[Accelerator]:
    """Open a strict accelerator; in the end nothing lives in it and nothing was bypassed."""
    with Accelerator(strict=True, embedding_runtime="torch", **arguments) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}
        assert made._driver.internal_errors == 0


def program(model: Any, **fields: Any) -> HuggingFaceEmbeddings:
    made = HuggingFaceEmbeddings.model_construct(model_name="the program's", **fields)
    made._client = model
    return made


def member(name: str, model: Any, **more: Any) -> FakeMember:
    """Return a member elsewhere that computes what a model does; a lock makes it one thread."""
    turn = threading.Lock()

    def vectors(texts: Sequence[str], role: str) -> Any:
        with turn:
            return model.encode(list(texts))

    return FakeMember(name, vectors=vectors, **more)


def placed(fast: Any, accelerator: Accelerator) -> Any:
    """Return accelerated embeddings once their model is on the devices, or known not to be."""
    fast.embed_query("the first text")
    assert accelerator.embedders.wait(PATIENCE_S)
    return fast


def torch_no_grad() -> Any:
    import torch

    return torch.no_grad()


def engines(accelerator: Accelerator) -> dict[str, Any]:
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return found


def close_to(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=1e-6)


# A list of devices alone takes the program's model.


def test_a_device_takes_the_programs_model_and_not_the_packaged_one(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("rag_accel.engines.embedding.engine.load_model", load)
    plain = program(model)
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.embed_documents(TEXTS), plain.embed_documents(TEXTS))
        assert engines(acc)["embedding#2"]["cpu_texts"] == len(TEXTS)
        assert "on the listed devices: cpu: the first member" in explain(fast)


def test_arguments_of_encode_are_honoured_for_each_role() -> None:
    prompted = program_model(query="query: ", text="passage: ")
    plain = program(
        prompted,
        encode_kwargs={"prompt_name": "text"},
        query_encode_kwargs={"prompt_name": "query", "truncate_dim": 40},
    )
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        assert "on the listed devices: cpu" in explain(fast)
        close_to(fast.embed_documents(TEXTS[:9]), plain.embed_documents(TEXTS[:9]))
        close_to(fast.embed_query("a question"), plain.embed_query("a question"))


@pytest.mark.processes
def test_64_callers_of_a_chain_share_a_device_and_a_process(model: Any) -> None:
    plain = program(model)
    store = InMemoryVectorStore(plain)
    store.add_texts(TEXTS[:30])
    chain = store.as_retriever(search_kwargs={"k": 2}) | RunnableLambda(joined)
    questions = [f"question {number} " + "word " * number for number in range(64)]
    with opened(embedder=["cpu", ProcessMember()]) as acc:
        embeddings = placed(accelerate(plain, accelerator=acc), acc)
        fast = accelerate(chain, accelerator=acc)
        with ThreadPoolExecutor(64) as callers:
            found = list(callers.map(fast.invoke, questions))
        assert found == [chain.invoke(question) for question in questions]
        counts = engines(acc)["embedding#2"]
        assert counts["items"] >= 64
        vectors = embeddings.embed_documents(TEXTS)
        close_to(vectors, plain.embed_documents(TEXTS))
        counts = engines(acc)["embedding#2"]
        assert min(counts["cpu_texts"], counts["process_texts"]) > 0


# A list with models of its own.


def test_equal_texts_with_other_arguments_share_no_vectors(model: Any) -> None:
    plain = program(model)
    cut = program(model, encode_kwargs={"truncate_dim": 40})
    listed = [SentenceTransformerEngine(model, runtime="torch")]
    with opened(embedder=listed) as acc:
        both = [placed(accelerate(one, accelerator=acc), acc) for one in (plain, cut)]
        for _ in range(2):  # the second time they are kept
            for fast, one in zip(both, (plain, cut), strict=True):
                close_to(fast.embed_query("a question"), one.embed_query("a question"))
        counts = engines(acc)["embedder"]
    assert (counts["kept_vector_misses"], counts["kept_vector_hits"]) == (1, 3)


def test_a_model_of_other_weights_runs_as_before_and_it_is_said(model: Any) -> None:
    plain = program(program_model(seed=1))
    listed = [SentenceTransformerEngine(model, runtime="torch")]
    with opened(embedder=listed) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.embed_documents(TEXTS[:9]), plain.embed_documents(TEXTS[:9]))
        assert "not on the listed devices: the list has another model: other weights" in explain(
            fast
        )
        assert "first_texts" not in engines(acc).get("embedder", {})


def test_texts_that_no_member_may_be_given_stay_with_the_program(model: Any) -> None:
    plain = program(model)
    for namespace, said in (("public", "on the listed"), ("secret", "no member may be given")):
        again = member("public", model)
        again.namespaces = frozenset({"public"})  # type: ignore[attr-defined]
        with opened(embedder=[again], namespace=namespace) as acc:
            fast = placed(accelerate(plain, accelerator=acc), acc)
            assert said in explain(fast)
            again.calls.clear()
            close_to(fast.embed_query("a secret"), plain.embed_query("a secret"))
            assert bool(again.calls) == (namespace == "public")


# Changes, limits and ends.


@pytest.mark.parametrize("listed", ["devices", "models"])
def test_a_model_that_is_changed_leaves_the_devices(
    listed: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = program_model()
    plain = program(own)
    with opened(embedder=["cpu"] if listed == "devices" else [member("first", own)]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        before = fast.embed_query("a question")
        with torch_no_grad():
            next(own.parameters()).mul_(1.5)
        caplog.clear()
        after = fast.embed_query("a question")
        close_to(after, plain.embed_query("a question"))
        assert np.abs(np.array(after) - before).max() > 1e-3
        assert "not on the listed devices: the model was changed" in explain(fast)
    assert [one.levelno for one in caplog.records] == [logging.WARNING]


def test_a_class_that_no_engine_computes_is_named_once(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake = DeterministicFakeEmbedding(size=4)
    with opened(embedder=["cpu"]) as acc:
        with pytest.warns(UnreadOptionWarning, match="embedder"):
            fast = accelerate(fake, accelerator=acc)
        for _ in range(2):
            assert fast.embed_query("x") == fake.embed_query("x")
        assert "not on the listed devices: no engine of this library" in explain(fast)
    said = [one.getMessage() for one in caplog.records if "DeterministicFake" in one.getMessage()]
    assert len(said) == 1


# The component.


def test_a_component_lists_devices_of_its_own(model: Any) -> None:
    with opened() as acc:
        ours = RagAccelEmbeddings(model, accelerator=acc, devices=["cpu"])
        placed(ours, acc)
        close_to(ours.embed_documents(TEXTS), model.encode(TEXTS))
        assert engines(acc)["embedding#2"]["cpu_texts"] == len(TEXTS)
        assert "on the listed devices: cpu" in explain(accelerate(ours, accelerator=acc))


@pytest.mark.parametrize("devices", [[], "cpu", ["gpu0"], 3, ["cpu", "cpu"], ["cuda:63"]])
def test_a_component_refuses_what_is_no_device(model: Any, devices: Any) -> None:
    with pytest.raises(ConfigError):
        RagAccelEmbeddings(model, devices=devices)


# Servers, and callers that leave.


def test_a_model_that_cannot_be_placed_is_embedded_as_before(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> Any:
        raise MemoryError("no room\nfor it")

    monkeypatch.setattr("rag_accel.accelerator.program_embedders.group_of", fail)
    plain = program(model)
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(plain, accelerator=acc), acc)
        close_to(fast.embed_documents(TEXTS), plain.embed_documents(TEXTS))
        assert "not on the listed devices: MemoryError: no room" in explain(fast)
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
