"""Composite retrievers and chains behave as the plain ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.retrievers import ParentDocumentRetriever
from langchain_classic.storage import InMemoryStore
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter
from lc_composites import (
    HISTORY,
    FirstCompressor,
    branching,
    compression,
    ensemble,
    extracting,
    filtering,
    filtering_by_vectors,
    history_aware,
    merger,
    multi_query,
    parents,
    retrieval_chain,
    store,
    stuffing_nothing,
)
from lc_fakes import (
    AsyncChat,
    AsyncEmbeddings,
    AsyncRetriever,
    FakeEmbeddings,
    SyncChat,
    SyncRetriever,
)
from lc_runs import Runs, come, config_with, outcome, until

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

# langchain_classic computes similarities with it
pytestmark = pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")


def _embedding(embeddings: Any) -> dict[str, Callable[[], Any]]:
    return {
        "parents": lambda: parents(embeddings),
        "filter by vectors": lambda: filtering_by_vectors(embeddings),
        "store behind a compressor": lambda: compression(retriever=store(embeddings)),
        "chain over a store": lambda: itemgetter("input") | ensemble(store(embeddings), merger()),
    }


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", [FakeEmbeddings, AsyncEmbeddings])
@pytest.mark.parametrize("name", _embedding(None))
async def test_leaves_without_callbacks_are_scheduled(
    name: str, kind: type[FakeEmbeddings], way: str, accelerator: Accelerator
) -> None:
    embeddings = kind()
    program = _embedding(embeddings)[name]()
    fast = accelerate(program, accelerator=accelerator)
    before = len(embeddings.journal.calls)
    given = {"input": "a b"} if name.startswith("chain") else "a b"
    with coverage() as meter:
        await outcome(getattr(fast, way), given)
    called = len(embeddings.journal.calls) - before
    rows = {row.kind: row.scheduled for row in meter.rows()}
    assert called > 0
    assert rows["embeddings"] == called
    assert meter.passed_by == 0


# Errors ----------------------------------------------------------------------------------------


def _failing(error: Exception) -> dict[str, Callable[[], Any]]:
    """Return programs in which one leaf fails, by what they are and which leaf that is."""
    model, retriever = AsyncChat(error=error), AsyncRetriever(error=error)
    sync_model, sync_retriever = SyncChat(error=error), SyncRetriever(error=error)
    vectors = FakeEmbeddings(error)
    compressor = FirstCompressor(error=error)
    searched = InMemoryVectorStore(vectors).as_retriever()
    fallen = sync_model.with_fallbacks([AsyncChat(error=KeyError("second"))])
    steady = retriever.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    return {
        "multi-query: retriever": lambda: multi_query(retriever),
        "multi-query: model": lambda: multi_query(model=sync_model),
        "ensemble: first": lambda: ensemble(sync_retriever, AsyncRetriever()),
        "ensemble: last": lambda: ensemble(AsyncRetriever(), SyncRetriever(), retriever),
        "merger: first": lambda: merger(retriever, SyncRetriever()),
        "merger: last": lambda: merger(SyncRetriever(), sync_retriever),
        "compression: retriever": lambda: compression(retriever=sync_retriever),
        "compression: compressor": lambda: compression(compressor),
        "extraction: model": lambda: extracting(model),
        "filter: model": lambda: filtering(sync_model),
        "filter: embeddings": lambda: filtering_by_vectors(vectors),
        "parents: embeddings": lambda: ParentDocumentRetriever(
            vectorstore=InMemoryVectorStore(vectors),
            docstore=InMemoryStore(),
            child_splitter=CharacterTextSplitter(),
        ),
        "history-aware: model": lambda: history_aware(model=model),
        "history-aware: retriever": lambda: history_aware(ensemble(sync_retriever)),
        "retrieval chain: retriever": lambda: retrieval_chain(searched),
        "retrieval chain: model": lambda: retrieval_chain(ensemble(), model),
        "branch: model": lambda: branching(model, model) | StrOutputParser(),
        "fallbacks: model": lambda: stuffing_nothing(fallen),
        "retry: retriever": lambda: itemgetter("input") | steady,
    }


@pytest.mark.cross_product(keep=33)
@pytest.mark.parametrize(
    "way", ["invoke", "batch", "stream", "ainvoke", "abatch", "astream", "astream_events"]
)
@pytest.mark.parametrize("name", _failing(ValueError()))
async def test_errors_are_the_same_object_and_no_run_stays_open(
    name: str, way: str, accelerator: Accelerator
) -> None:
    error = ValueError("broken")
    makes = _failing(error)
    bare: Any = RunnableLambda(lambda given: given) | makes[name]()
    fast: Any = accelerate(bare, accelerator=accelerator)
    # One input alone: of several that fail side by side LangChain raises any.
    given: list[Any] = ["question two" if "branch" in name else "question one"]
    if not isinstance(bare.steps[-1], BaseRetriever):
        given = [{"input": given[0], "chat_history": [] if "branch" in name else HISTORY}]
    of_bare, of_fast = Runs(), Runs()
    expected = await come(way, bare, given, config_with(of_bare))
    await until(lambda: of_bare.open() == [])  # what a loop runs beside an error runs on
    with coverage() as meter:
        found = await come(way, fast, given, config_with(of_fast))
        await until(lambda: of_fast.open() == [])
    assert expected[0] == found[0] == "raised"
    assert found[1] is expected[1]  # of fallbacks, a batch raises the last error
    if name != "multi-query: model":  # the meter knows a composite by what ran in it
        assert meter.passed_by == 0, str(meter)
    if name == "filter: model":  # its threads go on or not beside the one that fails
        less, more = sorted(
            (Counter(map(repr, one.events())) for one in (of_bare, of_fast)), key=len
        )
        assert less <= more
    else:
        assert of_fast.forest() == of_bare.forest()
