"""Make the programs that must behave the same, accelerated or not."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import (
    EnsembleRetriever,
)
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore
from lc_fakes import (
    AsyncChat,
    AsyncEmbeddings,
    AsyncRetriever,
    FakeEmbeddings,
    FakeLLM,
    OldRetriever,
    StreamingChat,
    SyncChat,
    SyncRetriever,
)

QUESTION = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{input}")])
GROUNDED = ChatPromptTemplate.from_template("{context}\n\n{input}")

Program = Callable[[], Runnable[Any, Any]]


def joined(found: list[Document]) -> str:
    return " + ".join(document.page_content for document in found)


def model_chain() -> Runnable[Any, Any]:
    return QUESTION | AsyncChat() | StrOutputParser()


def sync_model_chain() -> Runnable[Any, Any]:
    return QUESTION | SyncChat() | StrOutputParser()


def streaming_model_chain() -> Runnable[Any, Any]:
    return QUESTION | StreamingChat() | StrOutputParser()


def completion_chain() -> Runnable[Any, Any]:
    return PromptTemplate.from_template("say {input}") | FakeLLM() | StrOutputParser()


def retrieval_chain(retriever: Any = None, model: Any = None) -> Runnable[Any, Any]:
    context = itemgetter("input") | (retriever or AsyncRetriever()) | joined
    answered = GROUNDED | (model or AsyncChat()) | StrOutputParser()
    return RunnablePassthrough.assign(context=context).assign(answer=answered)


def parallel_chain() -> Runnable[Any, Any]:
    return RunnableParallel(
        question=itemgetter("input"),
        first=itemgetter("input") | SyncRetriever(prefix="a"),
        second=itemgetter("input") | AsyncRetriever(prefix="b"),
    )


def returning_a_runnable() -> Runnable[Any, Any]:
    long = QUESTION | AsyncChat(name="long") | StrOutputParser()
    short = QUESTION | SyncChat(name="short") | StrOutputParser()
    return RunnableLambda(lambda given: long if len(given["input"]) > 8 else short)


def calling_a_closure() -> Runnable[Any, Any]:
    model = AsyncChat()

    def call(given: dict[str, str]) -> str:
        return str(model.invoke(given["input"]).content)

    async def acall(given: dict[str, str]) -> str:
        return str((await model.ainvoke(given["input"])).content)

    return RunnableLambda(call, afunc=acall)


class Assistant:
    """Answer with a model that is an attribute."""

    def __init__(self) -> None:
        self.model = AsyncChat()
        self.retriever = SyncRetriever()

    def reply(self, given: dict[str, str]) -> str:
        found = self.retriever.invoke(given["input"])
        return str(self.model.invoke(joined(found)).content)


def calling_a_bound_method() -> Runnable[Any, Any]:
    return RunnableLambda(Assistant().reply)


def nested() -> Runnable[Any, Any]:
    inner = QUESTION | AsyncChat(name="inner") | StrOutputParser()
    return RunnablePassthrough.assign(draft=inner) | itemgetter("draft") | RunnableLambda(len)


def ensemble() -> Runnable[Any, Any]:
    parts = [SyncRetriever(prefix="a"), AsyncRetriever(prefix="b")]
    return itemgetter("input") | EnsembleRetriever(retrievers=parts, weights=[0.6, 0.4])


def old_style_retriever() -> Runnable[Any, Any]:
    return itemgetter("input") | OldRetriever()


def store_retriever(
    search_type: str = "similarity", embeddings: Any = None, **options: Any
) -> Runnable[Any, Any]:
    store = InMemoryVectorStore(embeddings or FakeEmbeddings())
    store.add_texts([f"text {number}" for number in range(12)])
    options.setdefault("k", 3)
    retriever = store.as_retriever(search_type=search_type, search_kwargs=options)
    return itemgetter("input") | retriever


def bound_model() -> Runnable[Any, Any]:
    return RunnableLambda(itemgetter("input")) | AsyncChat().bind(stop=["to"])


def configured_model() -> Runnable[Any, Any]:
    model = AsyncChat().configurable_fields(temperature=ConfigurableField(id="temperature"))
    return QUESTION | model | StrOutputParser()


def alternative_models() -> Runnable[Any, Any]:
    model = AsyncChat(name="first").configurable_alternatives(
        ConfigurableField(id="model"), default_key="first", second=SyncChat(name="second")
    )
    return QUESTION | model


def each_input() -> Runnable[Any, Any]:
    return RunnableLambda(lambda given: [given["input"], "more"]) | AsyncChat().map()


def generator_step() -> Runnable[Any, Any]:
    def words(chunks: Any) -> Any:
        for chunk in chunks:
            yield str(chunk).upper()

    async def awords(chunks: Any) -> Any:
        async for chunk in chunks:
            yield str(chunk).upper()

    from langchain_core.runnables import RunnableGenerator

    return QUESTION | AsyncChat() | StrOutputParser() | RunnableGenerator(words, awords)


#: Programs that run one step after the other, so that their callbacks come in one order too.
ORDERED: dict[str, Program] = {
    "model chain": model_chain,
    "sync model chain": sync_model_chain,
    "streaming model chain": streaming_model_chain,
    "completion chain": completion_chain,
    "lambda returning a runnable": returning_a_runnable,
    "closure": calling_a_closure,
    "bound method": calling_a_bound_method,
    "old-style retriever": old_style_retriever,
    "store": store_retriever,
    "store with async embeddings": lambda: store_retriever(embeddings=AsyncEmbeddings()),
    "store by diversity": lambda: store_retriever("mmr", fetch_k=6),
    "bound model": bound_model,
    "configurable fields": configured_model,
    "configurable alternatives": alternative_models,
    "generator step": generator_step,
}
PROGRAMS: dict[str, Program] = {
    **ORDERED,
    "retrieval chain": retrieval_chain,
    "picked": nested,
    "parallel": parallel_chain,
    "map": each_input,
}
