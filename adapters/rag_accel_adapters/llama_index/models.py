"""Models recognised inside LlamaIndex's embeddings objects, so that an owned engine can run them.

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
from rag_accel_adapters.libraries.http_embeddings import (
    OLLAMA,
    TEI,
    HttpEmbeddings,
    ollama_queries,
    tei_queries,
)
from rag_accel_adapters.libraries.written_methods import WrittenMethods
from rag_accel_adapters.llama_index.hosted import LEAVES, hosted_calls, limited

_INNER = ("_embed", "_embed_with_retry")
_WRITTEN = WrittenMethods(LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type) -> AdoptedEmbeddings:
    if obj._parallel_process:
        raise NotAdoptedError(
            "parallel_process has processes of its own embed", "parallel_process=False"
        )
    _WRITTEN.check(obj, cls)
    both = {"normalize_embeddings": obj.normalize}
    queries, texts = {**both, "prompt_name": "query"}, {**both, "prompt_name": "text"}
    adopted = adopt_plain_model(obj._model, queries, texts)
    return replace(adopted, through_sync=True, shows_progress=obj.show_progress_bar)


_OPENAI = server_class(hosted_calls, limited)
#: Settings that decide nothing of what is sent.
_APART = frozenset({"callback_manager", "embeddings_cache", "num_workers", "rate_limiter"})
_HTTP = (
    HttpEmbeddings(
        name="llama_index.embeddings.ollama.base.OllamaEmbedding",
        leaves=LEAVES,
        embed="_get_text_embeddings",
        protocol=OLLAMA,
        apart=_APART,
        ask_queries=ollama_queries,
        max_texts="embed_batch_size",
    ),
    HttpEmbeddings(
        name="llama_index.embeddings.text_embeddings_inference.base.TextEmbeddingsInference",
        leaves=LEAVES,
        embed="_get_text_embeddings",
        protocol=TEI,
        apart=_APART,
        ask_queries=tei_queries,
        max_texts="embed_batch_size",
    ),
)
EMBEDDINGS = KnownEmbeddings(
    {
        "llama_index.embeddings.huggingface.base.HuggingFaceEmbedding": EmbeddingsClass(
            _hugging_face, LOCAL_MODEL, ("parallel_process=True", *LOCAL_UNLESS)
        ),
        "llama_index.embeddings.openai.base.OpenAIEmbedding": _OPENAI,
        "llama_index.embeddings.azure_openai.base.AzureOpenAIEmbedding": _OPENAI,
        **{known.name: known.row() for known in _HTTP},
    },
    (*_INNER, *LEAVES),
)
