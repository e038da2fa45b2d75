"""List the methods in which LangChain objects do their work.

Only these are ever replaced: in a subclass made for one accelerated object, or in their classes
while a program needs it. What replaces them is made in ``wrappers``. Beside them stand the methods
in which composite retrievers make calls that do not need each other.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel, BaseLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from rag_accel.engine_api import PrimitiveKind
from rag_accel_adapters.langchain.composites import composite_of
from rag_accel_adapters.langchain.models import may_be_adopted

Flavour = Literal["plain", "coroutine", "generator", "async_generator", "composite"]

_ORIGINAL = "__rag_accel_original__"
#: What a class sets that brings its work to the scheduler itself.
SCHEDULED = "__rag_accel_scheduled__"

DECODING, SEARCHING = PrimitiveKind.DECODING, PrimitiveKind.SEARCHING
EMBEDDING, RERANKING = PrimitiveKind.EMBEDDING, PrimitiveKind.RERANKING


@dataclass(frozen=True, slots=True)
class LeafMethod:
    """Name one method that does work.

    Args:
        name: the method's name.
        kind: what the scheduler takes it for.
        flavour: how it is called; ``composite`` does no work but has others do it.
        default: the class whose version does no work of its own.
        sync: for an async method, the method that this default runs in an executor.
    """

    name: str
    kind: PrimitiveKind
    flavour: Flavour = "plain"
    default: type | None = None
    sync: str | None = None


def _pair(
    name: str, kind: PrimitiveKind, default: type, async_name: str | None = None
) -> list[LeafMethod]:
    other = async_name or f"a{name}"
    return [LeafMethod(name, kind), LeafMethod(other, kind, "coroutine", default, sync=name)]


def _model(base: type) -> list[LeafMethod]:
    # LangChain decides whether a model streams by who defines these two, so they are never
    # defined where the class did not.
    return [
        *_pair("_generate", DECODING, base, "_agenerate"),
        LeafMethod("_stream", DECODING, "generator", base),
        LeafMethod("_astream", DECODING, "async_generator", base),
    ]


_CHAT = [
    *_model(BaseChatModel),
    # Optional: a model may speak the newer event protocol itself.
    LeafMethod("_stream_chat_model_events", DECODING, "generator"),
    LeafMethod("_astream_chat_model_events", DECODING, "async_generator"),
]

_STORE = [
    leaf
    for name in (
        "similarity_search",
        "similarity_search_with_score",
        "similarity_search_by_vector",
        "max_marginal_relevance_search",
        "max_marginal_relevance_search_by_vector",
    )
    for leaf in _pair(name, SEARCHING, VectorStore)
]
# Each is known in one class of LangChain's; a method of the same name elsewhere is not touched.
_SPREAD = [
    LeafMethod(name, SEARCHING, "composite")
    for name in ("rank_fusion", "retrieve_documents", "merge_documents")
]
# Neither of these is done in an executor by default: each is made of the other searches.
_SCORED = [
    LeafMethod("similarity_search_with_relevance_scores", SEARCHING),
    LeafMethod("asimilarity_search_with_relevance_scores", SEARCHING, "coroutine"),
]

#: The leaf methods of each kind of LangChain object; the first base that fits counts.
LEAVES: dict[type, list[LeafMethod]] = {
    BaseChatModel: _CHAT,
    LLM: [*_model(BaseLLM), LeafMethod("_acall", DECODING, "coroutine", LLM, sync="_call")],
    BaseLLM: _model(BaseLLM),
    BaseRetriever: [
        *_pair("_get_relevant_documents", SEARCHING, BaseRetriever, "_aget_relevant_documents"),
        *_SPREAD,
    ],
    VectorStore: [*_STORE, *_SCORED],
    Embeddings: [
        *_pair("embed_query", EMBEDDING, Embeddings),
        *_pair("embed_documents", EMBEDDING, Embeddings),
    ],
    BaseDocumentCompressor: _pair(
        "compress_documents", RERANKING, BaseDocumentCompressor, "acompress_documents"
    ),
}


@dataclass(frozen=True, slots=True)
class LeafClass:
    """What every call asks of the class of its object.

    Args:
        base: the LangChain base class whose leaf methods it has, if any.
        engine: the borrowed engine's name for its objects.
        parts: what an object of it may hold that then does the work.
        may_be_adopted: whether an owned engine may run its objects.
    """

    base: type | None
    engine: str
    parts: tuple[type, ...]
    may_be_adopted: bool


#: What an object that only has others do the work holds, by base class. A model is never composite:
#: it may well call what it holds past the methods known here.
_PARTS: dict[type | None, tuple[type, ...]] = {
    BaseRetriever: (BaseRetriever,),
    Embeddings: (Embeddings,),
    BaseDocumentCompressor: (Runnable, Embeddings, BaseDocumentCompressor),
}

_known: WeakKeyDictionary[type, LeafClass] = WeakKeyDictionary()


def leaf_class(cls: type) -> LeafClass:
    """Return what is known of a class."""
    found = _known.get(cls)
    if found is None:
        base = next((base for base in LEAVES if issubclass(cls, base)), None)
        plain = plain_class(cls)
        engine = f"{plain.__module__}.{plain.__qualname__}"
        found = _known[cls] = LeafClass(base, engine, _PARTS.get(base, ()), may_be_adopted(plain))
    return found


def leaf_base(cls: type) -> type | None:
    """Return the LangChain base class whose leaf methods ``cls`` has, if any."""
    return leaf_class(cls).base


def is_scheduled(cls: type) -> bool:
    """Tell whether objects of this class schedule their work themselves."""
    return bool(getattr(cls, "__rag_accel__", False) or getattr(cls, SCHEDULED, False))


def plain_class(cls: type) -> type:
    """Return the class a twin's class was made from; any other class is its own."""
    return cls.__mro__[1] if cls.__dict__.get("__rag_accel__", False) else cls


def engine_name(cls: type) -> str:
    """Return the borrowed engine's name for objects of a class."""
    return leaf_class(cls).engine


def is_composite(obj: Any) -> bool:
    """Tell whether an object only has others of its kind, or models, do the work.

    Those are the leaves then.
    """
    parts = leaf_class(type(obj)).parts
    return bool(parts) and holds(obj, parts)


def holds(obj: Any, parts: tuple[type, ...]) -> bool:
    """Tell whether an attribute of ``obj`` is one of these, or a sequence of them."""
    for value in vars(obj).values():
        if isinstance(value, parts) or (
            isinstance(value, list | tuple) and value and isinstance(value[0], parts)
        ):
            return True
    return False


def is_default(cls: type, leaf: LeafMethod) -> bool:
    """Tell whether ``cls`` inherits a version of the method that does no work of its own.

    Of a composite's method, whether it is one that nothing is known of.
    """
    if leaf.flavour == "composite":
        return composite_of(plain_method(cls, leaf.name)) is None
    if leaf.default is None:
        return False
    here = plain_method(cls, leaf.name)
    # A retriever without ``run_manager`` gets a default of its own when its class is made.
    made = f"{leaf.default.__qualname__}.__init_subclass__.<locals>.{leaf.name}"
    return (
        here is plain_method(leaf.default, leaf.name) or getattr(here, "__qualname__", "") == made
    )


def plain_method(cls: type, name: str) -> Callable[..., Any] | None:
    """Return the method as the program wrote it, also while its class is patched."""
    method = getattr(cls, name, None)
    wrapper, original = getattr(method, _ORIGINAL, (None, None))
    # ``functools.wraps`` copies attributes: somebody's wrapper of our wrapper is not ours.
    return original if wrapper is not None and wrapper is method else method


def wrapped_in(cls: type, name: str) -> Callable[..., Any] | None:
    """Return what a wrapper of ours that stands in this very class wraps; ``None`` without one."""
    method = cls.__dict__.get(name)
    wrapper, original = getattr(method, _ORIGINAL, (None, None))
    return original if wrapper is not None and wrapper is method else None


def mark(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Note in a wrapper what it wraps."""
    setattr(wrapper, _ORIGINAL, (wrapper, original))
    with contextlib.suppress(TypeError, ValueError):
        # LangChain asks for it in every call, and finding it through a wrapper takes 60 us.
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return wrapper
