"""Accelerated objects of neo4j-graphrag, each an instance of its class that shares its state.

Each ``search`` of a ``GraphRAG`` or of a retriever is one request; an embedder or an LLM is
scheduled call by call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from neo4j_graphrag.embeddings.base import Embedder
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.llm.base import LLMInterface, LLMInterfaceV2
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.tool import Tool

from neo4j_graphrag_rag_accel.integration import INTEGRATION
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.owned_embedding import EmbeddingMethod, EmbeddingRecogniser
from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.coverage import OpenMeters
from rag_accel.interception.explanation import NOT_UNDERSTOOD, ExplainedPart, Explanation
from rag_accel.interception.integration import Acceleration
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    is_composite,
    leaf_base,
    leaf_class,
)
from rag_accel.interception.twins import leaf_wrappers, program_of, program_twin, twin
from rag_accel.system.methods import plain_class
from rag_accel_adapters.neo4j_graphrag.models import EMBEDDERS
from rag_accel_adapters.neo4j_graphrag.walk import walk

RECOGNISED = RecognisedParts(Embedder, EMBEDDERS)


DECODING, EMBEDDING = PrimitiveKind.DECODING, PrimitiveKind.EMBEDDING

_QUERY = EmbeddingMethod("query", one=True)
_RECOGNISER = EmbeddingRecogniser({"embed_query": _QUERY, "async_embed_query": _QUERY}, EMBEDDERS)

_MODEL = [
    LeafMethod("invoke", DECODING),
    LeafMethod("ainvoke", DECODING, "coroutine"),
    # By default these two say that a model calls no tools.
    LeafMethod("invoke_with_tools", DECODING, default=LLMInterface),
    LeafMethod("ainvoke_with_tools", DECODING, "coroutine", LLMInterface),
]


def _held_by(obj: Any) -> Iterator[Any]:
    held = getattr(obj, "__dict__", {})
    return (value for value in held.values() if leaf_base(type(value)) is not None)


NEO4J_GRAPHRAG = Framework(
    "neo4j-graphrag",
    leaves={
        # A retriever's queries to its database are part of the call in which it sends them: the
        # driver belongs to the program, which may use it for anything else.
        Retriever: [LeafMethod("get_search_results", PrimitiveKind.SEARCHING)],
        Embedder: [
            LeafMethod("embed_query", EMBEDDING, owned=_RECOGNISER.owned),
            # The default calls the other one on the loop. It stays there for a class of the user's:
            # what that does in its own thread is its business.
            LeafMethod("async_embed_query", EMBEDDING, "coroutine", owned=_RECOGNISER.owned),
        ],
        LLMInterface: _MODEL,
        LLMInterfaceV2: _MODEL,
    },
    # A retriever over tools has the retrievers they were made of do the work.
    parts={Retriever: (Retriever, Tool)},
    # A model over another.
    inner={DECODING: (LLMInterface, LLMInterfaceV2)},
    held_by=_held_by,
    walk=walk,
    reads=RECOGNISED.reads,
    why_not=RECOGNISED.why_not,
    may_be_owned=EMBEDDERS.may_adopt,
)


_NAMES = {
    "Retriever": "retriever",
    "Embedder": "embedder",
    "LLMInterface": "language model",
    "LLMInterfaceV2": "language model",
}

coverage: Final = OpenMeters(NEO4J_GRAPHRAG, _NAMES).coverage
#: The driver is the program's, and no leaf of its own.
_QUERIES = "; the queries that it sends over its driver are part of that call"


def _parts(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    for path, part in walk(program):
        line = f"{plain_class(type(part)).__name__}: {_how(part, accelerator)}"
        yield ExplainedPart(path, (line,), leaf_base(type(part)) is not None)


def _how(part: Any, accelerator: Accelerator) -> str:
    known = leaf_class(plain_class(type(part)))
    if isinstance(part, GraphRAG):
        return "runs plainly around its leaves, each search is one request"
    if is_composite(part):
        return "runs plainly around the retrievers and the model that it asks"
    if known.framework is NEO4J_GRAPHRAG:
        queries = _QUERIES if isinstance(part, Retriever) else ""
        described = RECOGNISED.describe(part, accelerator)
        return described or RECOGNISED.borrowed(part, accelerator) + queries
    if known.base is not None:
        return f"a leaf of {known.framework.name}: scheduled as its integration says"
    return NOT_UNDERSTOOD


#: entered by ``search``
_PROGRAMS = (GraphRAG, Retriever)
#: what only some models have
_OPTIONAL = frozenset({"invoke_with_tools", "ainvoke_with_tools"})


def _make(obj: Any, accelerator: Accelerator | None) -> Any:
    if isinstance(obj, _PROGRAMS):
        return program_twin(obj, accelerator, _program_methods)
    is_leaf = leaf_class(type(obj)).framework is NEO4J_GRAPHRAG
    return twin(obj, accelerator) if is_leaf else None


def _program_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated program differs from one of class ``cls``.

    A retriever is a leaf, too, for who asks it for its records.
    """
    plain: Any = cls.search  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def search(self: Any, *args: Any, **kwargs: Any) -> Any:
        with program_of(self).call():
            return plain(self, *args, **kwargs)

    leaves = leaf_wrappers(cls, own) if issubclass(cls, Retriever) else {}
    return {**leaves, "search": search}


def _hint(obj: Any) -> str:
    """Return what to do with an object that cannot be accelerated."""
    if isinstance(obj, type):
        return f"accelerate an instance: accelerate({obj.__name__}(...))"
    framework = type(obj).__module__.partition(".")[0]
    if framework.startswith(("langchain", "langgraph")):
        return "use accelerate of langchain_rag_accel: pip install 'rag-accel[langchain]'"
    if framework in ("llama_index", "workflows"):
        return "use accelerate of llama_index_rag_accel: pip install 'rag-accel[llama-index]'"
    if framework == "neo4j":
        return "accelerate the retriever that asks it"
    return "accelerate the GraphRAG or the retriever that uses it, or call it inside activate()"


ACCELERATION = Acceleration(
    NEO4J_GRAPHRAG,
    make=_make,
    takes="a GraphRAG, retriever, embedder or LLM of neo4j-graphrag",
    hint=_hint,
    explain=Explanation(NEO4J_GRAPHRAG, _parts).of,
    prepare=partial(RECOGNISED.prepare, NEO4J_GRAPHRAG),
    coverage=coverage,
    methods=[
        *((base, "search") for base in _PROGRAMS),
        *((base, name) for base, name in NEO4J_GRAPHRAG.working_methods() if name not in _OPTIONAL),
    ],
)
accelerate: Final = INTEGRATION.accelerate
explain: Final = INTEGRATION.explain
prepare: Final = INTEGRATION.prepare
