"""Parts of LangChain programs that no engine runs have the reason, in every report."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import numpy as np
import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_classic.retrievers.document_compressors import (
    DocumentCompressorPipeline,
    EmbeddingsFilter,
)
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from langchain_rag_accel import accelerate, activate, coverage, explain
from rag_accel import Accelerator, Options
from rag_accel.interception import option_reach

EMBEDDING = DeterministicFakeEmbedding(size=384)
NO_ENGINE = "no engine of this library computes what this class does"
LARGE, SMALL = 300, 12


class Quieter(InMemoryVectorStore):
    """A subclass whose search is its own."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Any]:
        return super().similarity_search(query, k, **kwargs)


class OwnStore(VectorStore):
    """A store that searches by itself, whatever it holds."""

    def __init__(self) -> None:
        self.embedding = EMBEDDING

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Any]:
        return []

    @classmethod
    def from_texts(cls, texts: Any, embedding: Any, *_: Any, **kwargs: Any) -> OwnStore:
        return cls()


def store_of(number: int, cls: type[InMemoryVectorStore] = InMemoryVectorStore) -> VectorStore:
    store = cls(EMBEDDING)
    store.add_texts([f"text {at}" for at in range(number)])
    return store


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have programs looked at, however many other tests have accelerated."""
    monkeypatch.setattr(option_reach, "_numbers", count(1))


def told(obj: Any, caplog: pytest.LogCaptureFixture, **arguments: Any) -> list[str]:
    """Return the warnings of accelerating an object."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "langchain_rag_accel"):
        accelerate(obj, **arguments)
    return [record.getMessage() for record in caplog.records]


# explain ------------------------------------------------------------------------------------------


def faiss_of_two() -> Any:
    pytest.importorskip("faiss")
    from langchain_community.vectorstores import FAISS

    return FAISS.from_texts(["a", "b"], DeterministicFakeEmbedding(size=8))


def faiss_over(factory: str) -> Any:
    import faiss

    store = faiss_of_two()
    store.index = faiss.index_factory(8, factory)
    store.index.train(np.ones((2, 8), dtype=np.float32))
    store.index.add(np.ones((2, 8), dtype=np.float32))
    return store


EXPLAINED: list[tuple[Any, str]] = [
    (lambda: store_of(SMALL), "(not now: small: 12 x 384 numbers, searched from 76,800 on)"),
    (lambda: store_of(LARGE), "InMemoryVectorStore: recognised store"),
    (lambda: store_of(LARGE, Quieter), "(Quieter overrides a method of InMemoryVectorStore; use"),
    (faiss_of_two, "(small: 2 x 8 numbers, searched from 2,000,000 on)"),
    (
        lambda: faiss_over("IVF1,Flat"),
        "a IndexIVFFlat; searches of IndexFlatL2 and IndexFlatIP run)",
    ),
    (OwnStore, f"({NO_ENGINE}; RagAccelVectorStore searches on an engine)"),
    (lambda: EMBEDDING, f"({NO_ENGINE}; RagAccelEmbeddings embeds with a local model)"),
]


@pytest.mark.parametrize(("make", "said"), EXPLAINED, ids=[said for _, said in EXPLAINED])
def test_a_part_says_why_no_engine_runs_it(make: Any, said: str, accelerator: Accelerator) -> None:
    explained = explain(accelerate(make(), accelerator=accelerator))
    assert said in explained
    assert ("not now" in explained) == ("not now" in said)


def test_a_model_on_a_server_names_the_options_that_would_act() -> None:
    openai = pytest.importorskip("langchain_openai")
    model = openai.ChatOpenAI(api_key="none", base_url="http://localhost:1/v1")
    with (
        Accelerator(endpoint_limits=False) as plain,
        Accelerator(endpoint_limits=False, kv_reuse="full") as telling,
    ):
        assert "kv_reuse is exact and no RemoteLLM names its server" in explain(
            accelerate(model, accelerator=plain)
        )
        assert "kv_reuse is exact" not in explain(accelerate(model, accelerator=telling))


def _parts(explanation: str) -> list[str]:
    """What is said of a program's parts, without what its accelerator has run so far."""
    return explanation.partition("\n  so far")[0].splitlines()[2:]


def _compressing(*transformers: Any) -> Any:
    return ContextualCompressionRetriever(
        base_retriever=store_of(SMALL).as_retriever(),
        base_compressor=DocumentCompressorPipeline(transformers=list(transformers)),
    )


FILTER = EmbeddingsFilter(embeddings=EMBEDDING, k=2)
COMPOSITES = {
    "filter first": lambda: _compressing(FILTER),
    "filter second": lambda: _compressing(EmbeddingsRedundantFilter(embeddings=EMBEDDING), FILTER),
    "ensemble": lambda: EnsembleRetriever(
        retrievers=[store_of(SMALL).as_retriever()], weights=[1.0]
    ),
}


@pytest.mark.parametrize("make", COMPOSITES.values(), ids=COMPOSITES)
def test_a_composite_is_not_said_to_be_borrowed_and_no_call_of_it_is(
    make: Any, accelerator: Accelerator
) -> None:
    fast = accelerate(make(), accelerator=accelerator)
    with coverage(fast) as seen:
        assert fast.invoke("text 3")
    names = {"ContextualCompressionRetriever", "DocumentCompressorPipeline", "EnsembleRetriever"}
    names |= {"EmbeddingsFilter"}
    lines = [line.split(": ") for line in _parts(explain(fast))]
    of_composites = [line[2] for line in lines if line[1] in names]
    assert set(of_composites) == {"runs plainly around its leaves"}
    assert not names & {call.cls for call in seen.calls}


def test_what_is_not_accelerated_says_so(accelerator: Accelerator) -> None:
    chain = store_of(SMALL).as_retriever() | str
    plain, fast = explain(chain), explain(accelerate(chain, accelerator=accelerator))
    assert plain.startswith("RunnableSequence is not accelerated: LangChain would keep the control")
    assert plain.splitlines()[1].startswith("accelerate(...) would schedule the leaf calls below")
    assert fast.startswith("RunnableSequence accelerated by interception")
    assert _parts(plain) == _parts(fast)
    assert explain("x").startswith("str is not accelerated")
    with activate(accelerator):
        assert explain(chain).startswith("RunnableSequence accelerated by interception")


# coverage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_retriever", [False, True])
def test_searches_that_an_engine_made_are_scheduled(
    is_retriever: bool, accelerator: Accelerator
) -> None:
    store: Any = store_of(LARGE)
    fast = accelerate(store.as_retriever() if is_retriever else store, accelerator=accelerator)
    with coverage(fast) as seen:
        for _ in range(8):
            fast.invoke("text 3") if is_retriever else fast.similarity_search("text 3")
    name = "VectorStoreRetriever" if is_retriever else "InMemoryVectorStore"
    call = next(call for call in seen.calls if call.cls == name)
    steps: Any = accelerator.metrics.snapshot()["engines"]["retrieval#1"]  # type: ignore[index]
    assert (call.scheduled, call.borrowed) == (steps["items"], 8 - steps["items"])
    assert call.scheduled > 0
    assert is_retriever or call.reason == "an engine of this library runs others of its calls"
    assert seen.passed_by == 0


# The warning --------------------------------------------------------------------------------------


def chain_of(number: int) -> Any:
    return store_of(number).as_retriever() | str | FakeListChatModel(responses=["a"])


def test_a_program_that_gets_nothing_is_named_once_with_its_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = chain_of(SMALL)
    (text,) = told(chain, caplog)
    assert text.startswith("langchain_core.runnables.base.RunnableSequence gets nothing but admis")
    assert "InMemoryVectorStore, because small: 12 x 384 numbers, searched from 76,800 on" in text
    assert "FakeListChatModel, because no engine" in text
    assert text.endswith("explain(...) lists each part")
    assert told(chain, caplog) == []


SILENT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a part gets more": (lambda: chain_of(LARGE), {}, "1"),
    "limit": (lambda: chain_of(SMALL), {"options": Options(max_requests=8)}, "1"),
    "deadline": (lambda: chain_of(SMALL), {"options": Options(deadline_s=3.0)}, "1"),
    "raises": (lambda: chain_of(SMALL), {"options": Options(on_full="raise")}, "1"),
    "off": (lambda: chain_of(SMALL), {}, "0"),
    "no visible leaf": (lambda: RunnableLambda(str), {}, "1"),
}


@pytest.mark.parametrize("name", SILENT)
def test_no_other_program_is_named(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, arguments, switch = SILENT[name]
    monkeypatch.setenv("RAG_ACCEL", switch)
    assert told(make(), caplog, **arguments) == []
