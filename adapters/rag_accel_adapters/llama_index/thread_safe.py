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
    class_names,
    prepare_nothing,
    state_of,
)

_CORE = "llama_index.core"


#: Reading from these leaves them as they are.
_OPAQUE = class_names("""
    llama_index.core.indices.vector_store.base VectorStoreIndex
    llama_index.core.indices.list.base SummaryIndex
    llama_index.core.vector_stores.simple SimpleVectorStore
    llama_index.core.storage.kvstore.simple_kvstore SimpleKVStore
    llama_index.core.vector_stores.types MetadataFilter MetadataFilters VectorStoreQuery
    llama_index.core.schema QueryBundle TextNode Node Document ImageNode
    llama_index.core.graph_stores.types EntityNode ChunkNode Relation
    # Its driver may be shared by threads, and what it keeps beside changes with its schema alone.
    llama_index.graph_stores.neo4j.neo4j_property_graph Neo4jPropertyGraphStore
    tiktoken.core Encoding
    openai OpenAI AsyncOpenAI AzureOpenAI AsyncAzureOpenAI
    httpx Client AsyncClient
    sentence_transformers.sentence_transformer.model SentenceTransformer
    sentence_transformers.SentenceTransformer SentenceTransformer
""")
#: These run coroutines in loops of their own.
_LOOPING = class_names("""
    llama_index.core.evaluation.relevancy RelevancyEvaluator
    llama_index.core.evaluation.faithfulness FaithfulnessEvaluator
    llama_index.core.evaluation.correctness CorrectnessEvaluator
    llama_index.core.evaluation.guideline GuidelineEvaluator
    llama_index.core.query_engine.sub_question_query_engine SubQuestionQueryEngine
    llama_index.core.retrievers.fusion_retriever QueryFusionRetriever
    llama_index.core.response_synthesizers.tree_summarize TreeSummarize
    llama_index.core.response_synthesizers.accumulate Accumulate
    llama_index.core.response_synthesizers.compact_and_accumulate CompactAndAccumulate
""")
#: Their connections for coroutines belong to one loop.
_LOOP_BOUND = class_names("""
    llama_index.llms.openai.base OpenAI
    llama_index.embeddings.openai.base OpenAIEmbedding
""")
_PROMPTS = class_names("""
    llama_index.core.prompts.base PromptTemplate ChatPromptTemplate SelectorPromptTemplate
    llama_index.core.prompts.rich RichPromptTemplate
""")
_OTHERS = class_names("""
    llama_index.core.response_synthesizers.compact_and_refine CompactAndRefine
    llama_index.core.response_synthesizers.refine Refine
    llama_index.core.response_synthesizers.simple_summarize SimpleSummarize
    llama_index.core.response_synthesizers.generation Generation
    llama_index.core.response_synthesizers.no_text NoText
    llama_index.core.response_synthesizers.context_only ContextOnly
    llama_index.core.indices.prompt_helper PromptHelper ChatPromptHelper
    llama_index.core.utilities.token_counting TokenCounter
    llama_index.core.base.llms.types ChatMessage TextBlock
    llama_index.core.output_parsers.pydantic PydanticOutputParser
    llama_index.core.query_engine.retriever_query_engine RetrieverQueryEngine
    llama_index.core.query_engine.transform_query_engine TransformQueryEngine
    llama_index.core.query_engine.multistep_query_engine MultiStepQueryEngine
    llama_index.core.query_engine.retry_query_engine RetryQueryEngine RetryGuidelineQueryEngine
    llama_index.core.query_engine.retry_source_query_engine RetrySourceQueryEngine
    llama_index.core.query_engine.citation_query_engine CitationQueryEngine
    llama_index.core.query_engine.router_query_engine RouterQueryEngine
    llama_index.core.query_engine.flare.base FLAREInstructQueryEngine
    llama_index.core.query_engine.flare.answer_inserter LLMLookaheadAnswerInserter
    llama_index.core.query_engine.flare.output_parser IsDoneOutputParser QueryTaskOutputParser
    llama_index.core.indices.query.query_transform.base IdentityQueryTransform HyDEQueryTransform
    llama_index.core.indices.query.query_transform.base DecomposeQueryTransform
    llama_index.core.indices.query.query_transform.base StepDecomposeQueryTransform
    llama_index.core.selectors.llm_selectors LLMSingleSelector LLMMultiSelector
    llama_index.core.output_parsers.selection SelectionOutputParser
    llama_index.core.tools.query_engine QueryEngineTool
    llama_index.core.tools.types ToolMetadata
    llama_index.core.indices.vector_store.retrievers.retriever VectorIndexRetriever
    llama_index.core.indices.list.retrievers SummaryIndexRetriever
    llama_index.core.storage.docstore.simple_docstore SimpleDocumentStore
    llama_index.core.postprocessor.node SimilarityPostprocessor LongContextReorder
    llama_index.core.postprocessor.metadata_replacement MetadataReplacementPostProcessor
    llama_index.core.node_parser.text.sentence SentenceSplitter
    llama_index.core.llms.mock MockLLM
    llama_index.core.embeddings.mock_embed_model MockEmbedding
    llama_index.embeddings.huggingface.base HuggingFaceEmbedding
    llama_index.vector_stores.faiss.base FaissVectorStore
    llama_index.llms.huggingface.base HuggingFaceLLM
    llama_index.core.callbacks.base CallbackManager
""")


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
_SPLITTING = class_names("""
    llama_index.core.evaluation.relevancy RelevancyEvaluator
    llama_index.core.evaluation.faithfulness FaithfulnessEvaluator
    llama_index.core.query_engine.retry_source_query_engine RetrySourceQueryEngine
    llama_index.core.query_engine.citation_query_engine CitationQueryEngine
""")
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
