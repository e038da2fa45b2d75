"""What of LangChain is known to be thread-safe, and that nothing else counts as it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
)
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import (
    BaseCallbackHandler,
    CallbackManager,
    StdOutCallbackHandler,
    StreamingStdOutCallbackHandler,
    UsageMetadataCallbackHandler,
)
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.globals import set_llm_cache
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import RagAccelRetriever, RagAccelVectorStore, accelerate
from rag_accel.system.classes import full_name
from rag_accel_adapters.langchain.thread_safe import THREAD_SAFETY

openai = pytest.importorskip("langchain_openai")
openai_errors = pytest.importorskip("openai")


def is_safe(obj: Any, *named: str) -> bool:
    return not isinstance(THREAD_SAFETY.check([obj], named), str)


@pytest.fixture
def everybodys_cache() -> Iterator[None]:
    """Give all models a cache."""
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


def model(**options: Any) -> Any:
    """Return a model that is never asked."""
    return openai.ChatOpenAI(model="none", api_key="none", **options)


def retriever() -> Any:
    """Return a retriever over an empty store."""
    return InMemoryVectorStore(DeterministicFakeEmbedding(size=2)).as_retriever()


def extracting() -> Any:
    """Return a retriever whose documents a model shortens."""
    extractor = LLMChainExtractor.from_llm(model())
    return ContextualCompressionRetriever(base_retriever=retriever(), base_compressor=extractor)


def own(given: Any) -> Any:
    return given


@pytest.mark.parametrize("name", sorted(THREAD_SAFETY.opaque | THREAD_SAFETY.composed))
def test_each_class_is_where_it_is_known(name: str) -> None:
    module, _, cls = name.rpartition(".")
    package = module.partition(".")[0]
    pytest.importorskip(package)
    if package == "sentence_transformers":  # which of its two places depends on its version
        return
    assert full_name(getattr(importlib.import_module(module), cls)) == name


SAFE: dict[str, Callable[[], Any]] = {
    "model": model,
    "model that is bound": lambda: model().bind(stop=["x"]),
    "structured output": lambda: model().with_structured_output(
        {"title": "t", "type": "object", "properties": {}}
    ),
    "steady model": lambda: (
        model()
        .with_retry(retry_if_exception_type=(openai_errors.APIError,))
        .with_fallbacks([model()], exceptions_to_handle=(openai_errors.APIError,))
    ),
    "ensemble": lambda: EnsembleRetriever(retrievers=[retriever(), retriever()]),
    "merger": lambda: MergerRetriever(retrievers=[retriever(), extracting()]),
    "queries": lambda: MultiQueryRetriever.from_llm(retriever(), model()),
    "chain": lambda: RunnablePassthrough.assign(
        a=ChatPromptTemplate.from_template("{b}") | model()
    ),
    "twin": lambda: accelerate(retriever()),
    "accelerated chain": lambda: accelerate(RunnablePassthrough() | retriever()),
    "our store": lambda: RagAccelVectorStore(DeterministicFakeEmbedding(size=2)).as_retriever(),
    "our retriever": lambda: RagAccelRetriever(
        store=InMemoryVectorStore(DeterministicFakeEmbedding(size=2))
    ),
    "handlers": lambda: CallbackManager([StdOutCallbackHandler(), UsageMetadataCallbackHandler()]),
}


@pytest.mark.parametrize("name", SAFE)
def test_upstreams_own_objects_are_safe(name: str) -> None:
    assert is_safe(SAFE[name]())


class OwnEmbedding(DeterministicFakeEmbedding):
    """Embeddings of the user's."""


class OwnEnsemble(EnsembleRetriever):
    """An ensemble of the user's."""


UNSAFE: dict[str, Callable[[], Any]] = {
    "own embeddings": lambda: InMemoryVectorStore(OwnEmbedding(size=2)).as_retriever(),
    "own composite": lambda: OwnEnsemble(retrievers=[retriever()]),
    "own function": lambda: EnsembleRetriever(retrievers=[RunnableLambda(own)]),
    "own handler": lambda: CallbackManager([BaseCallbackHandler()]),
    "printed tokens": lambda: CallbackManager([StreamingStdOutCallbackHandler()]),
    "model with a handler": lambda: model(callbacks=[BaseCallbackHandler()]),
    "model with a cache": lambda: model(cache=InMemoryCache()),
    "model with a limiter": lambda: model(rate_limiter=InMemoryRateLimiter()),
    "model with a counter": lambda: model(custom_get_token_ids=lambda text: [1]),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_not_known_is_not_safe(name: str) -> None:
    assert not is_safe(UNSAFE[name]())


@pytest.mark.usefixtures("everybodys_cache")
def test_a_cache_of_all_models_counts_unless_a_model_has_none() -> None:
    assert not is_safe(model())
    assert is_safe(model(cache=False))


@pytest.mark.parametrize(
    ("name", "named"),
    [("own embeddings", OwnEmbedding), ("own composite", OwnEnsemble), ("own function", own)],
)
def test_a_class_or_function_that_the_user_names_is_safe(name: str, named: Any) -> None:
    assert is_safe(UNSAFE[name](), full_name(named))
