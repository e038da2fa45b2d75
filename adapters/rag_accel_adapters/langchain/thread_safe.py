"""LangChain's classes whose objects may be called from several threads at once.

Found by reading langchain-core 1.8.3, langchain-classic 1.0.8 and the packages of the classes: what
they keep between calls is set when they are made, or guarded, or only read. A class that is not
named here, a user's callback handler among them, is not known to be so.
"""

from __future__ import annotations

from typing import Any

from langchain_core.globals import get_llm_cache

from rag_accel.adoption.clients import is_on_gpu
from rag_accel.system.thread_safety import Look, ThreadSafety, attributes_of, class_names

_CORE, _CLASSIC = "langchain_core", "langchain_classic"
_COMMUNITY, _EXPERIMENTAL = "langchain_community", "langchain_experimental"
_OURS = "langchain_rag_accel"


#: Calls leave these as they are, or lock what they change.
_OPAQUE = class_names("""
    langchain_core.documents.base Document
    langchain_core.messages.human HumanMessage
    langchain_core.messages.system SystemMessage
    langchain_core.messages.ai AIMessage
    langchain_community.docstore.in_memory InMemoryDocstore
    operator itemgetter
    rank_bm25 BM25Okapi
    httpx Client
    sentence_transformers.sentence_transformer.model SentenceTransformer
    sentence_transformers.SentenceTransformer SentenceTransformer
    # LangChain itself calls these handlers from several threads. Not those that stream: the tokens
    # of different calls would mix.
    langchain_core.tracers.langchain LangChainTracer
    langchain_core.tracers.run_collector RunCollectorCallbackHandler
    langchain_core.tracers.stdout ConsoleCallbackHandler
    langchain_core.callbacks.stdout StdOutCallbackHandler
    langchain_core.callbacks.usage UsageMetadataCallbackHandler
    langchain_community.callbacks.openai_info OpenAICallbackHandler
    langchain_rag_accel.components.embeddings RagAccelEmbeddings
""")
_MANAGERS = class_names("""
    langchain_core.callbacks.manager CallbackManager CallbackManagerForRetrieverRun
    langchain_core.callbacks.manager CallbackManagerForChainRun
""")
_MODELS = class_names("""
    langchain_openai.chat_models.base ChatOpenAI
    langchain_openai.chat_models.azure AzureChatOpenAI
    langchain_rag_accel.components.local_chat ChatRagAccel
""")
_EMBEDDINGS = class_names("""
    langchain_openai.embeddings.base OpenAIEmbeddings
    langchain_openai.embeddings.azure AzureOpenAIEmbeddings
""")
_PARTS = class_names("""
    langchain_core.prompts.prompt PromptTemplate
    langchain_core.prompts.chat ChatPromptTemplate MessagesPlaceholder HumanMessagePromptTemplate
    langchain_core.prompts.chat SystemMessagePromptTemplate AIMessagePromptTemplate
    langchain_core.output_parsers.string StrOutputParser
    langchain_core.output_parsers.json JsonOutputParser
    langchain_core.output_parsers.pydantic PydanticOutputParser
    langchain_core.output_parsers.openai_tools JsonOutputToolsParser JsonOutputKeyToolsParser
    langchain_core.output_parsers.openai_tools PydanticToolsParser
    langchain_core.runnables.base RunnableSequence RunnableParallel RunnableLambda RunnableGenerator
    langchain_core.runnables.base RunnableBinding
    langchain_core.runnables.passthrough RunnablePassthrough RunnableAssign RunnablePick
    langchain_core.runnables.fallbacks RunnableWithFallbacks
    langchain_core.runnables.retry RunnableRetry
    langchain_core.language_models.chat_models _ChatModelBinding
    langchain_core.vectorstores.base VectorStoreRetriever
    langchain_core.embeddings.fake DeterministicFakeEmbedding
    langchain_classic.chains.llm LLMChain
    langchain_classic.retrievers.ensemble EnsembleRetriever
    langchain_classic.retrievers.multi_query MultiQueryRetriever LineListOutputParser
    langchain_classic.retrievers.merger_retriever MergerRetriever
    langchain_classic.retrievers.contextual_compression ContextualCompressionRetriever
    langchain_classic.retrievers.document_compressors.chain_extract LLMChainExtractor NoOutputParser
    langchain_experimental.graph_transformers.llm LLMGraphTransformer
""")

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
