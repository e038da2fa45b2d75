"""Models recognised inside the embedders of neo4j-graphrag, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its model
embeds as sentence-transformers wrote it, or its client asks its server as the openai package wrote
it; everything else stays borrowed and runs where its caller is.
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
from rag_accel_adapters.libraries.written_methods import WrittenMethods
from rag_accel_adapters.neo4j_graphrag.hosted import hosted_calls

_LEAVES = ("embed_query", "async_embed_query")
_WRITTEN = WrittenMethods(_LEAVES)


def _sentence_transformer(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    from rag_accel.engines.embedding.models import has_plain_encode

    # An ``encode`` that was replaced may look at who calls it, or at its texts as a whole.
    if not has_plain_encode(obj.model) or not _WRITTEN.are_plain(obj, cls, method):
        return None
    try:
        return adopt_sentence_transformer(obj.model, {}, {}, str)
    except ConfigError:
        return None


def _openai(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    """Let texts of several callers share calls, where no caller could make another."""
    hosted = hosted_calls(obj, cls, method)
    return None if hosted is None else adopt_server(hosted)


EMBEDDERS = KnownEmbeddings(
    {
        "neo4j_graphrag.embeddings.openai.AzureOpenAIEmbeddings": _openai,
        "neo4j_graphrag.embeddings.openai.OpenAIEmbeddings": _openai,
        "neo4j_graphrag.embeddings.sentence_transformers.SentenceTransformerEmbeddings": (
            _sentence_transformer
        ),
    },
    _LEAVES,
)
