"""Models recognised inside LlamaIndex's embeddings objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.recognition.embeddings import (
    AdoptedEmbeddings,
    KnownEmbeddings,
    adopt_sentence_transformer,
    adopt_server,
)
from rag_accel.recognition.known_classes import PlainMethod
from rag_accel_adapters.libraries.written_methods import WrittenMethods
from rag_accel_adapters.llama_index.hosted import hosted_calls

_INNER = ("_embed", "_embed_with_retry")
_LEAVES = (
    "_get_query_embedding",
    "_get_text_embedding",
    "_get_text_embeddings",
    "_aget_query_embedding",
    "_aget_text_embedding",
    "_aget_text_embeddings",
)
_WRITTEN = WrittenMethods(_LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    from rag_accel.engines.embedding.models import has_plain_encode

    # An ``encode`` that was replaced may look at who calls it, or at its texts as a whole.
    if obj._parallel_process or not has_plain_encode(obj._model):
        return None
    if not _WRITTEN.are_plain(obj, cls, method):
        return None
    both = {"normalize_embeddings": obj.normalize}
    queries, texts = {**both, "prompt_name": "query"}, {**both, "prompt_name": "text"}
    try:
        adopted = adopt_sentence_transformer(obj._model, queries, texts, str)
    except ConfigError:
        return None
    return replace(adopted, through_sync=True)


def _openai(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    """Let small requests of several callers share calls, where no caller could make another."""
    hosted = hosted_calls(obj, cls, method)
    return None if hosted is None else adopt_server(hosted)


EMBEDDINGS = KnownEmbeddings(
    {
        "llama_index.embeddings.huggingface.base.HuggingFaceEmbedding": _hugging_face,
        "llama_index.embeddings.openai.base.OpenAIEmbedding": _openai,
    },
    (*_INNER, *_LEAVES),
)
