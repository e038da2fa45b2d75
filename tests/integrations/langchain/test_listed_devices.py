"""Embeddings of a LangChain program on the devices that are listed as the embedder."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from idle_accelerators import soon_idle
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from lc_programs import joined
from program_models import program_model

from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator
from rag_accel.engines import ProcessMember
from rag_accel.testing.members import FakeMember

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


def embedding_chain(plain: Any) -> Any:
    def embed(question: str) -> list[float]:
        return plain.embed_query(question)

    return RunnableLambda(embed)


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


def test_two_models_of_a_program_are_two_groups(model: Any) -> None:
    plain, other = program(model), program(program_model(seed=1))
    with opened(embedder=["cpu"]) as acc:
        for one in (plain, other):
            fast = placed(accelerate(one, accelerator=acc), acc)
            close_to(fast.embed_documents(TEXTS[:5]), one.embed_documents(TEXTS[:5]))
        groups = [name for name, engine in engines(acc).items() if "cpu_texts" in engine]
    assert len(groups) == 2


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


def test_a_group_goes_with_its_last_holder(model: Any) -> None:
    with opened(embedder=["cpu"]) as acc:
        fast = placed(accelerate(program(model), accelerator=acc), acc)
        assert len(acc.health().parts) == 2
        del fast
        gc.collect()
        assert soon_idle(acc)
        assert acc.embedders._placings == {}
        again = placed(accelerate(program(model), accelerator=acc), acc)
        assert "cpu: the first member" in explain(again)


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


def test_64_callers_of_a_chain_use_both_members(model: Any) -> None:
    plain, first, second = program(model), member("first", model), member("second", model)
    questions = [f"question {number}" for number in range(64)]
    with opened(embedder=[first, second], call_threads=80) as acc:
        chain = embedding_chain(plain)
        embeddings = placed(accelerate(plain, accelerator=acc), acc)
        assert "first: the first member" in explain(embeddings)
        fast = accelerate(chain, accelerator=acc)
        first.may_go.clear()
        first.is_asked.clear()
        second.is_asked.clear()
        with ThreadPoolExecutor(64) as callers:
            asked = [callers.submit(fast.invoke, text) for text in questions]
            assert first.is_asked.wait(PATIENCE_S)
            assert second.is_asked.wait(PATIENCE_S)
            first.may_go.set()
            found = [one.result(PATIENCE_S) for one in asked]
        counts = engines(acc)["embedder"]
    close_to(found, [plain.embed_query(text) for text in questions])
    assert min(counts["first_texts"], counts["second_texts"]) > 0
    assert counts["first_texts"] + counts["second_texts"] == 64
