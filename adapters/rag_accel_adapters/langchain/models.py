"""Models recognised inside framework objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

from dataclasses import replace
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
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel_adapters.langchain.hosted import LEAVES, hosted_calls, limited
from rag_accel_adapters.libraries.http_embeddings import HUB, OLLAMA, HttpEmbeddings
from rag_accel_adapters.libraries.written_methods import WrittenMethods

_INNER = ("_embed",)
_WRITTEN = WrittenMethods(LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type) -> AdoptedEmbeddings:
    if obj.multi_process:
        raise NotAdoptedError("multi_process has processes of its own embed", "multi_process=False")
    _WRITTEN.check(obj, cls)
    queries = obj.query_encode_kwargs or obj.encode_kwargs
    adopted = adopt_plain_model(obj._client, queries, obj.encode_kwargs, _one_line)
    return replace(adopted, shows_progress=obj.show_progress)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


_OPENAI = server_class(hosted_calls, limited)
_HTTP = (
    HttpEmbeddings(
        name="langchain_huggingface.embeddings.huggingface_endpoint.HuggingFaceEndpointEmbeddings",
        leaves=LEAVES,
        embed="embed_documents",
        protocol=HUB,
    ),
    HttpEmbeddings(
        name="langchain_ollama.embeddings.OllamaEmbeddings",
        leaves=LEAVES,
        embed="embed_documents",
        protocol=OLLAMA,
        apart=frozenset({"async_client_kwargs", "client_kwargs", "sync_client_kwargs"}),
    ),
)
EMBEDDINGS = KnownEmbeddings(
    {
        "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": EmbeddingsClass(
            _hugging_face, LOCAL_MODEL, ("multi_process=True", *LOCAL_UNLESS)
        ),
        "langchain_openai.embeddings.base.OpenAIEmbeddings": _OPENAI,
        "langchain_openai.embeddings.azure.AzureOpenAIEmbeddings": _OPENAI,
        **{known.name: known.row() for known in _HTTP},
    },
    (*_INNER, *LEAVES),
)
