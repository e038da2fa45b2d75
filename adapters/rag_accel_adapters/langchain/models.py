"""Models recognised inside framework objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.errors import ConfigError
from rag_accel_adapters.langchain.as_shipped import PlainMethod
from rag_accel_adapters.langchain.hosted import HostedCalls, hosted_calls


@dataclass(frozen=True, slots=True)
class AdoptedEmbeddings:
    """An embeddings object as work for an owned engine.

    Args:
        model: the object that computes; objects that share it share an engine.
        variant: settings that make another engine of the same model.
        make: builds the engine under an accelerator's options.
        prepare: what the object does to each text before the model sees it.
        describe: says what runs the model under an accelerator's options.
        hosted: how it asks its server; None for a model that computes here.
    """

    model: Any
    variant: str
    make: Callable[[Options], Engine]
    prepare: Callable[[str], str]
    describe: Callable[[Options], str]
    hosted: HostedCalls | None = None


def _method(cls: type, name: str) -> Any:
    return getattr(cls, name, None)


def may_be_adopted(cls: type, method: PlainMethod = _method) -> bool:
    """Tell whether objects of a class may be run by an owned engine."""
    return _adopter(cls, method) is not None


def adopt_embeddings(
    obj: Any, cls: type, method: PlainMethod = _method
) -> AdoptedEmbeddings | None:
    """Return how an owned engine can run ``obj``, which is a plain ``cls``; ``None`` if not."""
    adopter = _adopter(cls, method)
    return None if adopter is None else adopter(obj, cls, method)


def _adopter(cls: type, method: PlainMethod) -> _Adopter | None:
    """Return what adopts objects of a class: a known one, or one that embeds as it does."""
    if cls not in _adopters:
        known = next((base for base in cls.__mro__ if _full_name(base) in _EMBEDDINGS), None)
        same = known is not None and all(method(cls, one) is method(known, one) for one in _EMBEDS)
        _adopters[cls] = _EMBEDDINGS[_full_name(known)] if known is not None and same else None
    return _adopters[cls]


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


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


def _hugging_face(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    from rag_accel.engines.embedding.models import has_plain_encode

    # An ``encode`` that was replaced may look at who calls it, or at its texts as a whole.
    if obj.multi_process or not has_plain_encode(obj._client):
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

    runs = describe(model, "torch" if options.reproducible else options.embedding_runtime)
    return f"recognised local model: owned engine, texts of all requests share batches; {runs}"


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _as_it_is(text: str) -> str:
    return text


def _openai(obj: Any, cls: type, method: PlainMethod) -> AdoptedEmbeddings | None:
    """Let small requests of several callers share calls, where no caller could make another."""
    hosted = hosted_calls(obj, cls, method)
    if hosted is None:
        return None
    return AdoptedEmbeddings(
        model=hosted_calls,  # one engine asks all servers, and keeps no object alive
        variant="",
        make=_hosted,
        prepare=_as_it_is,
        describe=_describe_hosted,
        hosted=hosted,
    )


def _hosted(options: Options) -> Engine:
    from rag_accel.engines.embedding.hosted_engine import HostedEmbeddingEngine

    return HostedEmbeddingEngine()


def _describe_hosted(options: Options) -> str:
    return (
        "recognised server: queries and short lists of all requests share its calls, a longer list"
        " is sent where its caller is"
    )


_Adopter = Callable[[Any, type, PlainMethod], AdoptedEmbeddings | None]

_EMBEDDINGS: dict[str, _Adopter] = {
    "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": _hugging_face,
    "langchain_openai.embeddings.base.OpenAIEmbeddings": _openai,
    "langchain_openai.embeddings.azure.AzureOpenAIEmbeddings": _openai,
}
#: the methods that make them what they are
_EMBEDS = ("_embed", "embed_documents", "embed_query", "aembed_documents", "aembed_query")

_adopters: WeakKeyDictionary[type, _Adopter | None] = WeakKeyDictionary()
