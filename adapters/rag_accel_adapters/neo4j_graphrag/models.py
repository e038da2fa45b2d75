"""Models recognised inside the embedders of neo4j-graphrag, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its model
embeds as sentence-transformers wrote it, or its client asks its server as the openai package wrote
it; everything else stays borrowed and runs where its caller is.
"""

from __future__ import annotations

from typing import Any

from rag_accel.adoption.embeddings import (
    LOCAL_MODEL,
    LOCAL_UNLESS,
    AdoptedEmbeddings,
    EmbeddingsClass,
    KnownEmbeddings,
    adopt_plain_model,
    server_class,
)
from rag_accel_adapters.libraries.written_methods import WrittenMethods
from rag_accel_adapters.neo4j_graphrag.hosted import LEAVES, hosted_calls, limited

_WRITTEN = WrittenMethods(LEAVES)


def _sentence_transformer(obj: Any, cls: type) -> AdoptedEmbeddings:
    _WRITTEN.check(obj, cls)
    return adopt_plain_model(obj.model, {}, {})


_OPENAI = server_class(hosted_calls, limited)
EMBEDDERS = KnownEmbeddings(
    {
        "neo4j_graphrag.embeddings.openai.AzureOpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.openai.OpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.sentence_transformers.SentenceTransformerEmbeddings": (
            EmbeddingsClass(_sentence_transformer, LOCAL_MODEL, LOCAL_UNLESS)
        ),
    },
    LEAVES,
)
