"""Models recognised inside LlamaIndex's embeddings objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rag_accel.recognition.embeddings import (
    AdoptedEmbeddings,
    KnownEmbeddings,
    adopt_plain_model,
    server_adopter,
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
    if obj._parallel_process or not _WRITTEN.are_plain(obj, cls, method):
        return None
    both = {"normalize_embeddings": obj.normalize}
    queries, texts = {**both, "prompt_name": "query"}, {**both, "prompt_name": "text"}
    adopted = adopt_plain_model(obj._model, queries, texts)
    if adopted is None:
        return None
    return replace(adopted, through_sync=True, shows_progress=obj.show_progress_bar)


_OPENAI = server_adopter(hosted_calls)
EMBEDDINGS = KnownEmbeddings(
    {
        "llama_index.embeddings.huggingface.base.HuggingFaceEmbedding": _hugging_face,
        "llama_index.embeddings.openai.base.OpenAIEmbedding": _OPENAI,
    },
    (*_INNER, *_LEAVES),
)
