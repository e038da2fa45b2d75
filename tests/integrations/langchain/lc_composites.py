"""Make the composite retrievers and chains of LangChain, over fakes whose answers are fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
)
from langchain_classic.retrievers.document_compressors import (
    DocumentCompressorPipeline,
    EmbeddingsFilter,
    LLMChainExtractor,
    LLMChainFilter,
)
from langchain_classic.storage import InMemoryStore
from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter
from lc_fakes import (
    AsyncChat,
    AsyncEmbeddings,
    AsyncRetriever,
    Fake,
    FakeEmbeddings,
    FakeLLM,
    StreamingChat,
    SyncChat,
    SyncRetriever,
)
from pydantic import Field

GROUNDED = ChatPromptTemplate.from_messages([("system", "{context}"), ("human", "{input}")])
REPHRASED = ChatPromptTemplate.from_messages(
    [MessagesPlaceholder("chat_history"), ("human", "{input}")]
)
ASKED = PromptTemplate.from_template("ask in other words: {question}")
JUDGED = PromptTemplate.from_template("does {context} answer {question}?")
HISTORY = [HumanMessage("before"), AIMessage("then")]

Make = Callable[..., Any]


class FirstCompressor(Fake, BaseDocumentCompressor):
    """Keep the first document and note that it was looked at."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        with self.journal.call():
            self.check(query)
            return [Document(documents[0].page_content, metadata={"for": query})]


def words(message: Any) -> list[str]:
    """Return three queries out of an answer."""
    text = str(message.text)
    return [f"{number} {text}" for number in range(3)]


def multi_query(retriever: Any = None, model: Any = None, **options: Any) -> MultiQueryRetriever:
    chain = ASKED | (model or AsyncChat()) | RunnableLambda(words)
    inner = retriever or AsyncRetriever()
    return MultiQueryRetriever(retriever=inner, llm_chain=chain, **options)


def multi_query_with_original() -> MultiQueryRetriever:
    return multi_query(SyncRetriever(), StreamingChat(), include_original=True)


def ensemble(*retrievers: Any) -> EnsembleRetriever:
    parts = [*retrievers] or [SyncRetriever(prefix="a"), AsyncRetriever(prefix="b")]
    weights = [float(len(parts) - place) for place in range(len(parts))]
    return EnsembleRetriever(retrievers=parts, weights=weights)


def ensemble_of_runnables() -> EnsembleRetriever:
    upper = RunnableLambda(str.upper)
    return ensemble(upper | SyncRetriever(prefix="a"), upper | AsyncRetriever(prefix="b"))


def ensemble_by_key() -> EnsembleRetriever:
    parts = [SyncRetriever(prefix="a"), AsyncRetriever(prefix="b")]
    return EnsembleRetriever(retrievers=parts, id_key="number", tags=["mine"], metadata={"m": 1})


def ensemble_of_texts() -> EnsembleRetriever:
    texts = RunnableLambda(lambda query: [f"{query} one", f"{query} two"])
    return ensemble(texts, SyncRetriever())


def merger(*retrievers: Any) -> MergerRetriever:
    parts = [*retrievers] or [SyncRetriever(prefix="a"), AsyncRetriever(prefix="b")]
    return MergerRetriever(retrievers=parts)


def compression(compressor: Any = None, retriever: Any = None) -> ContextualCompressionRetriever:
    return ContextualCompressionRetriever(
        base_compressor=compressor or FirstCompressor(), base_retriever=retriever or store()
    )


def extracting(model: Any = None) -> ContextualCompressionRetriever:
    extractor = LLMChainExtractor.from_llm(model or AsyncChat())
    return compression(extractor, AsyncRetriever())


def filtering(model: Any = None) -> ContextualCompressionRetriever:
    chain = JUDGED | (model or AsyncChat()) | RunnableLambda(lambda said: said.text[7] > "7")
    return compression(LLMChainFilter(llm_chain=chain), AsyncRetriever())


def filtering_by_vectors(embeddings: Any = None) -> ContextualCompressionRetriever:
    pytest.importorskip("langchain_community")  # which computes the similarities
    kept = EmbeddingsFilter(embeddings=embeddings or FakeEmbeddings(), k=1)
    return compression(kept, SyncRetriever())


def compressing_in_steps() -> ContextualCompressionRetriever:
    steps = [FirstCompressor(), LLMChainExtractor.from_llm(SyncChat())]
    return compression(DocumentCompressorPipeline(transformers=steps), multi_query())


def store(embeddings: Any = None, **options: Any) -> BaseRetriever:
    made = InMemoryVectorStore(embeddings or FakeEmbeddings())
    texts = [f"text {number}" for number in range(8)]
    made.add_texts(texts, [{"number": number} for number in range(8)], ids=[*"abcdefgh"])
    return made.as_retriever(search_kwargs={"k": 3}, **options)


def parents(embeddings: Any = None, **options: Any) -> ParentDocumentRetriever:
    made = ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(embeddings or FakeEmbeddings()),
        docstore=InMemoryStore(),
        child_splitter=CharacterTextSplitter(separator=" ", chunk_size=12, chunk_overlap=0),
        search_kwargs={"k": 4},
        **options,
    )
    texts = ["one text of many words", "another text of words", "a third and last one"]
    documents = [Document(text, metadata={"place": place}) for place, text in enumerate(texts)]
    made.add_documents(documents, ids=["p", "q", "r"])
    return made


def nested_composites() -> ContextualCompressionRetriever:
    inner = multi_query(ensemble(SyncRetriever(prefix="a"), merger(store(), parents())))
    return compression(LLMChainExtractor.from_llm(SyncChat()), ensemble(inner, AsyncRetriever()))


def history_aware(retriever: Any = None, model: Any = None) -> Runnable[Any, Any]:
    return create_history_aware_retriever(model or AsyncChat(), retriever or ensemble(), REPHRASED)


def stuffing(model: Any = None) -> Runnable[Any, Any]:
    return create_stuff_documents_chain(model or StreamingChat(), GROUNDED)


def retrieval_chain(retriever: Any = None, model: Any = None) -> Runnable[Any, Any]:
    return create_retrieval_chain(retriever or AsyncRetriever(), stuffing(model))


def conversation() -> Runnable[Any, Any]:
    return create_retrieval_chain(history_aware(), stuffing())


def rag_of_composites() -> Runnable[Any, Any]:
    return create_retrieval_chain(multi_query(ensemble()), stuffing())


def branching(left: Any = None, right: Any = None) -> Runnable[Any, Any]:
    return RunnableBranch(
        (lambda given: "two" in given["input"], stuffing_nothing(left or AsyncChat())),
        (lambda given: "three" in given["input"], itemgetter("input") | (right or ensemble())),
        stuffing_nothing(StreamingChat()),
    )


def stuffing_nothing(model: Any) -> Runnable[Any, Any]:
    return RunnableLambda(lambda given: {**given, "context": "none"}) | GROUNDED | model


def branch_in_a_chain() -> Runnable[Any, Any]:
    return RunnableLambda(dict) | branching() | RunnableLambda(lambda found: [found])


def fallbacks(error: Exception | None = None) -> Runnable[Any, Any]:
    broken = AsyncChat(error=error or ValueError("broken model"))
    model = broken.with_fallbacks([AsyncChat(), SyncChat()])
    return stuffing_nothing(model) | StrOutputParser()


def retriever_with_fallbacks() -> Runnable[Any, Any]:
    broken = SyncRetriever(error=ValueError("broken retriever"))
    return itemgetter("input") | broken.with_fallbacks([multi_query()])


def retrying() -> Runnable[Any, Any]:
    flaky = AsyncChat(error=ConnectionError("try again"), flaky=True)
    steady = flaky.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    return stuffing_nothing(steady) | StrOutputParser()


def retriever_with_retry() -> Runnable[Any, Any]:
    flaky = ensemble(AsyncRetriever(error=ConnectionError("try again"), flaky=True))
    steady = flaky.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    return itemgetter("input") | steady


def completing() -> Runnable[Any, Any]:
    steady = FakeLLM().with_retry(stop_after_attempt=2).with_fallbacks([FakeLLM()])
    return PromptTemplate.from_template("say {input}") | steady


#: Retrievers: their input is a question.
RETRIEVERS: dict[str, Make] = {
    "multi-query": multi_query,
    "multi-query with the original": multi_query_with_original,
    "ensemble": ensemble,
    "ensemble of runnables": ensemble_of_runnables,
    "ensemble by key": ensemble_by_key,
    "ensemble of texts": ensemble_of_texts,
    "merger": merger,
    "compression": compression,
    "extraction": extracting,
    "filter": filtering,
    "filter by vectors": filtering_by_vectors,
    "filter by async vectors": lambda: filtering_by_vectors(AsyncEmbeddings()),
    "compression in steps": compressing_in_steps,
    "parents": parents,
    "parents by diversity": lambda: parents(search_type="mmr"),
    "nested": nested_composites,
}
#: Chains: their input is a dict with ``input``.
CHAINS: dict[str, Make] = {
    "history-aware retriever": history_aware,
    "history-aware parents": lambda: history_aware(parents(AsyncEmbeddings())),
    "stuffed documents": lambda: RunnableLambda(_with_documents) | stuffing(),
    "retrieval chain": retrieval_chain,
    "retrieval chain over parents": lambda: retrieval_chain(parents(), SyncChat()),
    "conversation": conversation,
    "chain of composites": rag_of_composites,
    "branch": branching,
    "branch in a chain": branch_in_a_chain,
    "fallbacks": fallbacks,
    "retriever with fallbacks": retriever_with_fallbacks,
    "retry": retrying,
    "retriever with retry": retriever_with_retry,
    "retry with fallbacks": completing,
}


def _with_documents(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "context": [Document("one"), Document("two", metadata={"m": 1})]}


class Told(Fake, BaseRetriever):
    """Retrieve through a function of the test's."""

    find: Any = Field(exclude=True)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        with self.journal.call():
            self.check(query)
            return list(self.find(query))
