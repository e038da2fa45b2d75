"""Models recognised inside framework objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.recognition.embeddings import (
    AdoptedEmbeddings,
    KnownEmbeddings,
    adopt_sentence_transformer,
    adopt_server,
)
from rag_accel.recognition.known_classes import PlainMethod
from rag_accel_adapters.langchain.hosted import hosted_calls
from rag_accel_adapters.libraries.written_methods import WrittenMethods

_INNER = ("_embed",)
_LEAVES = ("embed_documents", "embed_query", "aembed_documents", "aembed_query")
_WRITTEN = WrittenMethods(_LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    from rag_accel.engines.embedding.models import has_plain_encode

    # An ``encode`` that was replaced may look at who calls it, or at its texts as a whole.
    if obj.multi_process or not has_plain_encode(obj._client):
        return None
    if not _WRITTEN.are_plain(obj, cls, method):
        return None
    queries = obj.query_encode_kwargs or obj.encode_kwargs
    try:
        return adopt_sentence_transformer(obj._client, queries, obj.encode_kwargs, _one_line)
    except ConfigError:
        return None


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _openai(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    """Let small requests of several callers share calls, where no caller could make another."""
    hosted = hosted_calls(obj, cls, method)
    return None if hosted is None else adopt_server(hosted)


EMBEDDINGS = KnownEmbeddings(
    {
        "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": _hugging_face,
        "langchain_openai.embeddings.base.OpenAIEmbeddings": _openai,
        "langchain_openai.embeddings.azure.AzureOpenAIEmbeddings": _openai,
    },
    (*_INNER, *_LEAVES),
)
