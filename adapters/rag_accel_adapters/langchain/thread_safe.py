"""LangChain's classes whose objects may be called from several threads at once.

Found by reading langchain-core 1.8.3, langchain-classic 1.0.8 and the packages of the classes: what
they keep between calls is set when they are made, or guarded, or only read. A class that is not
named here, a user's callback handler among them, is not known to be so.
"""

from __future__ import annotations

from typing import Any

from langchain_core.globals import get_llm_cache

from rag_accel.adoption.clients import is_on_gpu
from rag_accel.system.thread_safety import Look, ThreadSafety, attributes_of

_CORE, _CLASSIC = "langchain_core", "langchain_classic"
_COMMUNITY, _EXPERIMENTAL = "langchain_community", "langchain_experimental"
_OURS = "langchain_rag_accel"


def _names(module: str, classes: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in classes.split())


#: Calls leave these as they are, or lock what they change.
_OPAQUE = frozenset[str]().union(
    _names(f"{_CORE}.documents.base", "Document"),
    _names(f"{_CORE}.messages.human", "HumanMessage"),
    _names(f"{_CORE}.messages.system", "SystemMessage"),
    _names(f"{_CORE}.messages.ai", "AIMessage"),
    _names(f"{_COMMUNITY}.docstore.in_memory", "InMemoryDocstore"),
    _names("operator", "itemgetter"),
    _names("rank_bm25", "BM25Okapi"),
    _names("httpx", "Client"),
    _names("sentence_transformers.sentence_transformer.model", "SentenceTransformer"),
    _names("sentence_transformers.SentenceTransformer", "SentenceTransformer"),
    # LangChain itself calls these handlers from several threads. Not those that stream: the tokens
    # of different calls would mix.
    _names(f"{_CORE}.tracers.langchain", "LangChainTracer"),
    _names(f"{_CORE}.tracers.run_collector", "RunCollectorCallbackHandler"),
    _names(f"{_CORE}.tracers.stdout", "ConsoleCallbackHandler"),
    _names(f"{_CORE}.callbacks.stdout", "StdOutCallbackHandler"),
    _names(f"{_CORE}.callbacks.usage", "UsageMetadataCallbackHandler"),
    _names(f"{_COMMUNITY}.callbacks.openai_info", "OpenAICallbackHandler"),
    _names(f"{_OURS}.components.embeddings", "RagAccelEmbeddings"),
)
_MANAGERS = _names(
    f"{_CORE}.callbacks.manager",
    "CallbackManager CallbackManagerForRetrieverRun CallbackManagerForChainRun",
)
_MODELS = frozenset[str]().union(
    _names("langchain_openai.chat_models.base", "ChatOpenAI"),
    _names("langchain_openai.chat_models.azure", "AzureChatOpenAI"),
    _names(f"{_OURS}.components.local_chat", "ChatRagAccel"),
)
_EMBEDDINGS = _names("langchain_openai.embeddings.base", "OpenAIEmbeddings") | _names(
    "langchain_openai.embeddings.azure", "AzureOpenAIEmbeddings"
)
_PARTS = frozenset[str]().union(
    _names(f"{_CORE}.prompts.prompt", "PromptTemplate"),
    _names(
        f"{_CORE}.prompts.chat",
        "ChatPromptTemplate MessagesPlaceholder HumanMessagePromptTemplate"
        " SystemMessagePromptTemplate AIMessagePromptTemplate",
    ),
    _names(f"{_CORE}.output_parsers.string", "StrOutputParser"),
    _names(f"{_CORE}.output_parsers.json", "JsonOutputParser"),
    _names(f"{_CORE}.output_parsers.pydantic", "PydanticOutputParser"),
    _names(
        f"{_CORE}.output_parsers.openai_tools",
        "JsonOutputToolsParser JsonOutputKeyToolsParser PydanticToolsParser",
    ),
    _names(
        f"{_CORE}.runnables.base",
        "RunnableSequence RunnableParallel RunnableLambda RunnableGenerator RunnableBinding",
    ),
    _names(f"{_CORE}.runnables.passthrough", "RunnablePassthrough RunnableAssign RunnablePick"),
    _names(f"{_CORE}.runnables.fallbacks", "RunnableWithFallbacks"),
    _names(f"{_CORE}.runnables.retry", "RunnableRetry"),
    _names(f"{_CORE}.language_models.chat_models", "_ChatModelBinding"),
    _names(f"{_CORE}.vectorstores.base", "VectorStoreRetriever"),
    _names(f"{_CORE}.embeddings.fake", "DeterministicFakeEmbedding"),
    _names(f"{_CLASSIC}.chains.llm", "LLMChain"),
    _names(f"{_CLASSIC}.retrievers.ensemble", "EnsembleRetriever"),
    _names(f"{_CLASSIC}.retrievers.multi_query", "MultiQueryRetriever LineListOutputParser"),
    _names(f"{_CLASSIC}.retrievers.merger_retriever", "MergerRetriever"),
    _names(
        f"{_CLASSIC}.retrievers.contextual_compression",
        "ContextualCompressionRetriever",
    ),
    _names(
        f"{_CLASSIC}.retrievers.document_compressors.chain_extract",
        "LLMChainExtractor NoOutputParser",
    ),
    _names(f"{_EXPERIMENTAL}.graph_transformers.llm", "LLMGraphTransformer"),
)

#: Attributes that describe an object, and that its calls only pass on or compare with.
_DESCRIBING = frozenset(
    {
        "metadata",
        "tags",
        "input_type",
        "input_types",
        "custom_input_type",
        "custom_output_type",
        "exceptions_to_handle",
        "retry_exception_types",
    }
)


def _part(part: Any) -> list[object]:
    return [held for name, held in attributes_of(part).items() if name not in _DESCRIBING]


def _model(model: Any) -> list[object] | None:
    has_cache = model.cache is not False and (model.cache or get_llm_cache()) is not None
    # Two that ask at once for the same would both ask; a limiter counts in the order of calls.
    if has_cache or model.rate_limiter is not None:
        return None
    given = [getattr(model, name, None) for name in ("openai_api_key", "custom_get_token_ids")]
    calls = [value for value in given if callable(value)]
    return [model.callbacks, getattr(model, "http_client", None), *calls]


def _hugging_face(embeddings: Any) -> list[object] | None:
    return None if embeddings.multi_process else [embeddings._client]


def _faiss(store: Any) -> list[object] | None:
    if is_on_gpu(store.index):
        return None
    return [store.embedding_function, store.docstore, store.override_relevance_score_fn]


_LOOKS: dict[str, Look] = {
    **dict.fromkeys(_PARTS, _part),
    **dict.fromkeys(_MODELS, _model),
    **dict.fromkeys(_MANAGERS, lambda run: [run.handlers, run.inheritable_handlers]),
    **dict.fromkeys(_EMBEDDINGS, lambda embeddings: [embeddings.http_client]),
    "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": _hugging_face,
    f"{_CORE}.vectorstores.in_memory.InMemoryVectorStore": lambda store: [store.embedding],
    f"{_COMMUNITY}.vectorstores.faiss.FAISS": _faiss,
    f"{_COMMUNITY}.retrievers.bm25.BM25Retriever": lambda bm25: [
        bm25.vectorizer,
        bm25.preprocess_func,
    ],
    # What these were given: the rest is this library's.
    f"{_OURS}.components.retrievers.RagAccelRetriever": lambda retriever: [retriever.store],
    f"{_OURS}.components.vectorstores.RagAccelVectorStore": lambda store: [store.embeddings],
    f"{_OURS}.runnables.AcceleratedRunnable": lambda made: [
        made.bound,
        made.kwargs,
        made.config,
        made.config_factories,
    ],
}

THREAD_SAFETY = ThreadSafety(
    opaque=_OPAQUE,
    composed=frozenset(_LOOKS),
    packages=(
        _CORE,
        _CLASSIC,
        f"{_COMMUNITY}.retrievers",
        f"{_EXPERIMENTAL}.graph_transformers",
        "langchain_openai.chat_models",
    ),
    looks=_LOOKS,
)
