"""LlamaIndex's classes whose objects may be called from several threads at once.

Found by reading llama-index-core 0.14.25: what they keep between calls is set when they are made,
or guarded, or the same whichever thread sets it first. FeedbackQueryTransformation, which keeps the
evaluation that it was given last, is not one of them. A class that is not named here, an older
callback handler among them, is not known to be so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llama_index.core
from llama_index.core import utils
from llama_index.core.prompts import PromptTemplate

from rag_accel.adoption.clients import is_on_gpu
from rag_accel.system.thread_safety import (
    Look,
    Preparation,
    ThreadSafety,
    prepare_nothing,
    state_of,
)

_CORE = "llama_index.core"


def _names(module: str, classes: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in classes.split())


#: Reading from these leaves them as they are.
_OPAQUE = frozenset[str]().union(
    _names(f"{_CORE}.indices.vector_store.base", "VectorStoreIndex"),
    _names(f"{_CORE}.indices.list.base", "SummaryIndex"),
    _names(f"{_CORE}.vector_stores.simple", "SimpleVectorStore"),
    _names(f"{_CORE}.storage.kvstore.simple_kvstore", "SimpleKVStore"),
    _names(f"{_CORE}.vector_stores.types", "MetadataFilter MetadataFilters VectorStoreQuery"),
    _names(f"{_CORE}.schema", "QueryBundle TextNode Node Document ImageNode"),
    _names(f"{_CORE}.graph_stores.types", "EntityNode ChunkNode Relation"),
    # Its driver may be shared by threads, and what it keeps beside changes with its schema alone.
    _names("llama_index.graph_stores.neo4j.neo4j_property_graph", "Neo4jPropertyGraphStore"),
    _names("tiktoken.core", "Encoding"),
    _names("openai", "OpenAI AsyncOpenAI AzureOpenAI AsyncAzureOpenAI"),
    _names("httpx", "Client AsyncClient"),
    _names("sentence_transformers.sentence_transformer.model", "SentenceTransformer"),
    _names("sentence_transformers.SentenceTransformer", "SentenceTransformer"),
)
#: These run coroutines in loops of their own.
_LOOPING = frozenset[str]().union(
    _names(f"{_CORE}.evaluation.relevancy", "RelevancyEvaluator"),
    _names(f"{_CORE}.evaluation.faithfulness", "FaithfulnessEvaluator"),
    _names(f"{_CORE}.evaluation.correctness", "CorrectnessEvaluator"),
    _names(f"{_CORE}.evaluation.guideline", "GuidelineEvaluator"),
    _names(f"{_CORE}.query_engine.sub_question_query_engine", "SubQuestionQueryEngine"),
    _names(f"{_CORE}.retrievers.fusion_retriever", "QueryFusionRetriever"),
    _names(f"{_CORE}.response_synthesizers.tree_summarize", "TreeSummarize"),
    _names(f"{_CORE}.response_synthesizers.accumulate", "Accumulate"),
    _names(f"{_CORE}.response_synthesizers.compact_and_accumulate", "CompactAndAccumulate"),
)
#: Their connections for coroutines belong to one loop.
_LOOP_BOUND = frozenset[str]().union(
    _names("llama_index.llms.openai.base", "OpenAI"),
    _names("llama_index.embeddings.openai.base", "OpenAIEmbedding"),
)
_PROMPTS = frozenset[str]().union(
    _names(f"{_CORE}.prompts.base", "PromptTemplate ChatPromptTemplate SelectorPromptTemplate"),
    _names(f"{_CORE}.prompts.rich", "RichPromptTemplate"),
)
_OTHERS = frozenset[str]().union(
    _names(f"{_CORE}.response_synthesizers.compact_and_refine", "CompactAndRefine"),
    _names(f"{_CORE}.response_synthesizers.refine", "Refine"),
    _names(f"{_CORE}.response_synthesizers.simple_summarize", "SimpleSummarize"),
    _names(f"{_CORE}.response_synthesizers.generation", "Generation"),
    _names(f"{_CORE}.response_synthesizers.no_text", "NoText"),
    _names(f"{_CORE}.response_synthesizers.context_only", "ContextOnly"),
    _names(f"{_CORE}.indices.prompt_helper", "PromptHelper ChatPromptHelper"),
    _names(f"{_CORE}.utilities.token_counting", "TokenCounter"),
    _names(f"{_CORE}.base.llms.types", "ChatMessage TextBlock"),
    _names(f"{_CORE}.output_parsers.pydantic", "PydanticOutputParser"),
    _names(f"{_CORE}.query_engine.retriever_query_engine", "RetrieverQueryEngine"),
    _names(f"{_CORE}.query_engine.transform_query_engine", "TransformQueryEngine"),
    _names(f"{_CORE}.query_engine.multistep_query_engine", "MultiStepQueryEngine"),
    _names(
        f"{_CORE}.query_engine.retry_query_engine",
        "RetryQueryEngine RetryGuidelineQueryEngine",
    ),
    _names(f"{_CORE}.query_engine.retry_source_query_engine", "RetrySourceQueryEngine"),
    _names(f"{_CORE}.query_engine.citation_query_engine", "CitationQueryEngine"),
    _names(f"{_CORE}.query_engine.router_query_engine", "RouterQueryEngine"),
    _names(f"{_CORE}.query_engine.flare.base", "FLAREInstructQueryEngine"),
    _names(f"{_CORE}.query_engine.flare.answer_inserter", "LLMLookaheadAnswerInserter"),
    _names(f"{_CORE}.query_engine.flare.output_parser", "IsDoneOutputParser QueryTaskOutputParser"),
    _names(
        f"{_CORE}.indices.query.query_transform.base",
        "IdentityQueryTransform HyDEQueryTransform DecomposeQueryTransform "
        "StepDecomposeQueryTransform",
    ),
    _names(f"{_CORE}.selectors.llm_selectors", "LLMSingleSelector LLMMultiSelector"),
    _names(f"{_CORE}.output_parsers.selection", "SelectionOutputParser"),
    _names(f"{_CORE}.tools.query_engine", "QueryEngineTool"),
    _names(f"{_CORE}.tools.types", "ToolMetadata"),
    _names(f"{_CORE}.indices.vector_store.retrievers.retriever", "VectorIndexRetriever"),
    _names(f"{_CORE}.indices.list.retrievers", "SummaryIndexRetriever"),
    _names(f"{_CORE}.storage.docstore.simple_docstore", "SimpleDocumentStore"),
    _names(f"{_CORE}.postprocessor.node", "SimilarityPostprocessor LongContextReorder"),
    _names(f"{_CORE}.postprocessor.metadata_replacement", "MetadataReplacementPostProcessor"),
    _names(f"{_CORE}.node_parser.text.sentence", "SentenceSplitter"),
    _names(f"{_CORE}.llms.mock", "MockLLM"),
    _names(f"{_CORE}.embeddings.mock_embed_model", "MockEmbedding"),
    _names("llama_index.embeddings.huggingface.base", "HuggingFaceEmbedding"),
    _names("llama_index.vector_stores.faiss.base", "FaissVectorStore"),
    _names("llama_index.llms.huggingface.base", "HuggingFaceLLM"),
    _names(f"{_CORE}.callbacks.base", "CallbackManager"),
)


def _prompt(prompt: Any) -> list[object] | None:
    # Formatting a part of it takes its parser away meanwhile.
    return None if prompt.output_parser is not None else state_of(prompt)


def _embedding(embedding: Any) -> list[object] | None:
    # Two that ask at once for the same would both compute it.
    return None if embedding.embeddings_cache is not None else state_of(embedding)


def _local_llm(llm: Any) -> list[object]:
    """Return what it calls beside its model and tokenizer, which are only read."""
    return [
        llm.callback_manager,
        llm.query_wrapper_prompt,
        llm.messages_to_prompt,
        llm.completion_to_prompt,
        llm.output_parser,
    ]


def _guideline_evaluator(evaluator: Any) -> list[object]:
    """Return what it holds; its prompt has a parser, but is never formatted in part."""
    prompt = evaluator._eval_template
    others = [held for held in state_of(evaluator) if held is not prompt]
    return [*others, *(state_of(prompt) if type(prompt) is PromptTemplate else [prompt])]


_LOOKS: dict[str, Look] = {
    **dict.fromkeys(_PROMPTS, _prompt),
    f"{_CORE}.embeddings.mock_embed_model.MockEmbedding": _embedding,
    "llama_index.embeddings.huggingface.base.HuggingFaceEmbedding": _embedding,
    "llama_index.embeddings.openai.base.OpenAIEmbedding": _embedding,
    "llama_index.llms.huggingface.base.HuggingFaceLLM": _local_llm,
    "llama_index.vector_stores.faiss.base.FaissVectorStore": lambda store: (
        None if is_on_gpu(store._faiss_index) else ()
    ),
    f"{_CORE}.evaluation.guideline.GuidelineEvaluator": _guideline_evaluator,
}

#: These may split text into sentences when they are called.
_SPLITTING = frozenset[str]().union(
    _names(f"{_CORE}.evaluation.relevancy", "RelevancyEvaluator"),
    _names(f"{_CORE}.evaluation.faithfulness", "FaithfulnessEvaluator"),
    _names(f"{_CORE}.query_engine.retry_source_query_engine", "RetrySourceQueryEngine"),
    _names(f"{_CORE}.query_engine.citation_query_engine", "CitationQueryEngine"),
)
_splitter_lock = threading.Lock()


def _prepare(classes: Collection[str]) -> Preparation | str:
    if _SPLITTING.isdisjoint(classes) or utils.globals_helper._punkt_tokenizer is not None:
        return prepare_nothing
    # Data that does not come with LlamaIndex would be fetched.
    if "NLTK_DATA" not in os.environ and _is_bundled():
        return _load_splitter
    return "it would have to fetch the data of the sentence splitter"


def _shared() -> list[object]:
    """Return what LlamaIndex's objects use where they were given nothing of the kind."""
    settings = vars(llama_index.core.Settings).values()
    return [*settings, llama_index.core.global_tokenizer, llama_index.core.global_handler]


@cache
def _is_bundled() -> bool:
    root = Path(llama_index.core.__file__).parent / "_static" / "nltk_cache"
    needed = ("corpora/stopwords", "tokenizers/punkt_tab")
    return all((root / name).exists() for name in needed)


def _load_splitter() -> None:
    """Load the sentence splitter's data: nltk fails if two threads do so at once."""
    # An error is met again by what needs the data, if anything does.
    with _splitter_lock, suppress(Exception):
        if utils.globals_helper._punkt_tokenizer is None:
            _ = utils.globals_helper.punkt_tokenizer


THREAD_SAFETY = ThreadSafety(
    opaque=_OPAQUE,
    composed=_PROMPTS | _OTHERS,
    looping=_LOOPING,
    loop_bound=_LOOP_BOUND,
    packages=(_CORE,),
    looks=_LOOKS,
    shared=_shared,
    prepare=_prepare,
)
