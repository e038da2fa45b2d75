"""Recognise local models inside framework objects, so that an owned engine can run them.

An object is adopted only if its exact class is known and its settings are ones under which the
engine computes the same vectors; everything else stays borrowed and runs where its caller is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AdoptedEmbeddings:
    """Describe an embeddings object as work for an owned engine.

    Args:
        model: the object that computes; objects that share it share an engine.
        variant: settings that make another engine of the same model.
        make: builds the engine under an accelerator's options.
        prepare: what the object does to each text before the model sees it.
        describe: says what runs the model under an accelerator's options.
    """

    model: Any
    variant: str
    make: Callable[[Options], Engine]
    prepare: Callable[[str], str]
    describe: Callable[[Options], str]


def may_be_adopted(cls: type) -> bool:
    """Tell whether objects that are exactly a ``cls`` may be run by an owned engine."""
    return f"{cls.__module__}.{cls.__qualname__}" in _EMBEDDINGS


def adopt_embeddings(obj: Any, cls: type) -> AdoptedEmbeddings | None:
    """Return how an owned engine can run ``obj``, which is exactly a ``cls``; ``None`` if not."""
    adopter = _EMBEDDINGS.get(f"{cls.__module__}.{cls.__qualname__}")
    return None if adopter is None else adopter(obj)


def adopt_sentence_transformer(
    model: Any,
    query_kwargs: Mapping[str, Any],
    document_kwargs: Mapping[str, Any],
    prepare: Callable[[str], str],
) -> AdoptedEmbeddings:
    """Describe a ``SentenceTransformer`` with the arguments of ``encode`` for both roles.

    Raises:
        ConfigError: an argument that an owned engine cannot honour.
    """
    from rag_accel.engines.embedding.models import encode_arguments

    queries = encode_arguments(query_kwargs, "query_encode_kwargs")
    documents = encode_arguments(document_kwargs, "encode_kwargs")
    return AdoptedEmbeddings(
        model=model,
        variant=f"{sorted(queries.items())} {sorted(documents.items())}",
        make=partial(_sentence_transformer, model, queries, documents),
        prepare=prepare,
        describe=partial(_described, model),
    )


def _hugging_face(obj: Any) -> AdoptedEmbeddings | None:
    if obj.multi_process:
        return None
    queries = obj.query_encode_kwargs or obj.encode_kwargs
    try:
        return adopt_sentence_transformer(obj._client, queries, obj.encode_kwargs, _one_line)
    except ConfigError:
        return None


def _sentence_transformer(
    model: Any, queries: Mapping[str, Any], documents: Mapping[str, Any], options: Options
) -> Engine:
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    return SentenceTransformerEngine(
        model,
        query_kwargs=queries,
        document_kwargs=documents,
        reproducible=options.reproducible,
        runtime=options.embedding_runtime,
    )


def _described(model: Any, options: Options) -> str:
    from rag_accel.engines.embedding.shared_runtimes import describe

    return describe(model, "torch" if options.reproducible else options.embedding_runtime)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


_EMBEDDINGS: dict[str, Callable[[Any], AdoptedEmbeddings | None]] = {
    "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": _hugging_face,
}
