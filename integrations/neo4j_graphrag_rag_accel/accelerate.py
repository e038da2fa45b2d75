"""Accelerated objects of neo4j-graphrag, each an instance of its class that shares its state.

Each ``search`` of a ``GraphRAG`` or of a retriever is one request; an embedder or an LLM is
scheduled call by call.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.retrievers.base import Retriever

from neo4j_graphrag_rag_accel.coverage import coverage
from neo4j_graphrag_rag_accel.explanation import EXPLANATION
from neo4j_graphrag_rag_accel.integration import INTEGRATION
from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from neo4j_graphrag_rag_accel.recognised import RECOGNISED
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.recognised_parts import Preparation
from rag_accel.interception.integration import Acceleration
from rag_accel.interception.leaf_table import leaf_class
from rag_accel.interception.twins import leaf_wrappers, program_of, program_twin, twin
from rag_accel_adapters.neo4j_graphrag.walk import walk

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
    explain=EXPLANATION.of,
    prepare=Preparation(RECOGNISED, lambda program: (part for _, part in walk(program))).of,
    coverage=coverage,
    methods=[
        *((base, "search") for base in _PROGRAMS),
        *((base, name) for base, name in NEO4J_GRAPHRAG.working_methods() if name not in _OPTIONAL),
    ],
)
accelerate: Final = INTEGRATION.accelerate
explain: Final = INTEGRATION.explain
prepare: Final = INTEGRATION.prepare
