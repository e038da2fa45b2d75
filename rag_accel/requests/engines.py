"""Engine arguments (``llm=``, ``embedder=``, ``index=`` and so on), bound to engines.

An ``Engine`` is owned; so is one that is named, as it is registered in the entry points, and made
without arguments. A language model may also be a folder or a name on the hub. Any other callable,
sync or async, is borrowed and is called with plain arguments:

    llm(prompt: str) -> str                                embedder(texts: list[str]) -> vectors
    index(query: str, k: int) -> documents or strings      reranker(query, texts) -> scores
    graph(query: str, k: int) -> documents or strings

What a stage asks for beyond that comes as a keyword argument, and only then: ``stop`` and
``max_tokens`` to an LLM, ``where`` to an index.

A callable does one of these things: the one its name stands for, or the ``kind`` it was added
with, or else what the first stage of a graph that names it asks for. ``graph_checks`` finds stages
that ask it for another.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rag_accel.engine_api import (
    BorrowedEngine,
    CompositeEngine,
    Document,
    Engine,
    EngineProfile,
    ScoredDocument,
)
from rag_accel.errors import ConfigError, DocumentError, EngineOutputError
from rag_accel.registry import engine_registry
from rag_accel.scheduler.messages import EngineName

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """An engine's name in the driver and its properties as passes read them."""

    engine: EngineName
    profile: EngineProfile | BorrowedEngine
    call: Callable[..., Any] | None = None
    #: tells the metadata fields of the documents it searches; None while there are none
    fields: Callable[[], frozenset[str] | None] | None = None
    #: tells what it is made of, a line for each part
    describe: Callable[[], Sequence[str]] | None = None
    #: whether the stages of a graph decide what this callable does
    is_open: bool = False
    #: the stage that has
    decided_by: str = ""


Engines: TypeAlias = Mapping[str, NamedEngine]
"""What stages may name, by the names they use."""


def is_engine(given: Any) -> TypeIs[Engine]:
    """Tell whether something is an engine, and no test double that has every attribute."""
    return isinstance(given, Engine) and isinstance(given.profile, EngineProfile)


def role_engine(name: str, given: Any) -> Engine | Callable[..., Any]:
    """Return an engine or a callable for what was given.

    Raises:
        ConfigError: if it is neither, nor something an installed part of us can run.
    """
    if is_engine(given):
        return given
    if isinstance(given, str):
        return _registered(name, given)
    # Of the class, so that an object which answers to any name is still a callable.
    as_engine = getattr(type(given), "as_engine", None)
    if as_engine is not None:
        return as_engine(given)
    if callable(given):
        return given
    raise ConfigError(
        "this cannot serve as an engine",
        where=f"{name}=",
        found=f"{type(given).__module__}.{type(given).__qualname__}",
        valid="an Engine, the name of one, a DocumentIndex, a MemoryGraph, or a callable "
        "(sync or async)",
        hint=_HINTS.get(name, _WRAP),
    )


_WRAP = "wrap it in a function, for example lambda prompt: model.invoke(prompt).content"
_HINTS = {
    "graph": "give triples as MemoryGraph(triples), and a graph for each tenant as "
    "KnowledgeEngine({namespace: graph})"
}


def is_model_name(given: Any) -> TypeIs[str]:
    """Tell whether this is a folder, or looks like a name on the hub, and no engine has it."""
    if not isinstance(given, str) or given in engine_registry().names():
        return False
    return Path(given).is_dir() or _HUB_NAME.fullmatch(given) is not None


_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def _registered(name: str, plugin: str) -> Engine:
    make = engine_registry().get(plugin)
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ConfigError(
            "an engine that needs arguments cannot be made from its name",
            where=f"{name}=",
            found=f"{plugin!r}: {error}",
            valid="the engine itself",
            hint=f"make it and give it as {name}=, see rag_accel.engines",
        ) from None
    return make()


def owned(name: EngineName, engine: Engine) -> NamedEngine:
    """Return an owned engine that has joined the driver under this name."""
    profile = engine.profile
    index: Any = getattr(engine, "index", None)
    describe = engine.describe_parts if isinstance(engine, CompositeEngine) else None
    if not isinstance(getattr(index, "fields", None), frozenset):
        return NamedEngine(name, profile, describe=describe)
    return NamedEngine(
        name, profile, fields=lambda: index.fields if len(index) else None, describe=describe
    )


def documents_from(found: Any, where: str) -> tuple[ScoredDocument, ...]:
    """Return what a borrowed index found as scored documents, best first.

    Raises:
        EngineOutputError: if it found something that is neither a document nor a text.
    """
    return tuple(_document(item, place, where) for place, item in enumerate(found))


def scored(documents: Sequence[Document], scores: Any, top_n: int | None) -> Any:
    """Order documents by a borrowed reranker's scores; equal scores keep their order.

    Raises:
        EngineOutputError: if there is not one finite score per document.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(documents),) or not np.isfinite(values).all():
        raise EngineOutputError(
            "a reranker returned scores that cannot be right",
            found=f"shape {values.shape}",
            valid=f"{len(documents)} finite numbers",
        )
    order = np.argsort(-values, kind="stable")[:top_n]
    return tuple(ScoredDocument(documents[i], float(values[i])) for i in order)


def plain_documents(value: Any) -> tuple[Document, ...]:
    """Return documents without their scores."""
    return tuple(
        item.document
        if isinstance(item, ScoredDocument)
        else _document(item, place, "rerank").document
        for place, item in enumerate(value)
    )


def kept_documents(value: Any, where: str) -> tuple[Document, ...]:
    """Return documents that an index can keep, without scores.

    Raises:
        DocumentError: if something is no document; a text has no id under which to keep it. Or if
            they can be read only once: they are embedded first and kept afterwards.
    """
    if isinstance(value, str) or not isinstance(value, Collection):
        raise DocumentError(
            "these are no documents that can be read twice",
            where=where,
            found=type(value).__name__,
            valid="a list or tuple of Document",
        )
    documents = tuple(item.document if isinstance(item, ScoredDocument) else item for item in value)
    for document in documents:
        if not isinstance(document, Document):
            raise DocumentError(
                "only documents can be kept in an index",
                where=where,
                found=type(document).__name__,
                valid="Document",
                hint="give each text an id: Document(id, text)",
            )
    return documents


def _document(item: Any, place: int, where: str) -> ScoredDocument:
    if isinstance(item, ScoredDocument):
        return item
    if isinstance(item, Document):
        return ScoredDocument(item, 0.0)
    if isinstance(item, str):
        return ScoredDocument(Document(f"{where}/{place}", item), 0.0)
    raise EngineOutputError(
        "an index returned something that is no document",
        where=where,
        found=type(item).__name__,
        valid="ScoredDocument, Document or str",
    )
