"""Models recognised inside the embedders of neo4j-graphrag, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its model
embeds as sentence-transformers wrote it, or its client asks its server as the openai package wrote
it; everything else stays borrowed and runs where its caller is.
"""

from __future__ import annotations

from typing import Any

from rag_accel.recognition.embeddings import (
    AdoptedEmbeddings,
    KnownEmbeddings,
    adopt_plain_model,
    server_adopter,
)
from rag_accel.recognition.known_classes import PlainMethod
from rag_accel_adapters.libraries.written_methods import WrittenMethods
from rag_accel_adapters.neo4j_graphrag.hosted import hosted_calls

_LEAVES = ("embed_query", "async_embed_query")
_WRITTEN = WrittenMethods(_LEAVES)


def _sentence_transformer(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    is_plain = _WRITTEN.are_plain(obj, cls, method)
    return adopt_plain_model(obj.model, {}, {}) if is_plain else None


_OPENAI = server_adopter(hosted_calls)
EMBEDDERS = KnownEmbeddings(
    {
        "neo4j_graphrag.embeddings.openai.AzureOpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.openai.OpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.sentence_transformers.SentenceTransformerEmbeddings": (
            _sentence_transformer
        ),
    },
    _LEAVES,
)
