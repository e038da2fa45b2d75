"""Explanations of accelerated programs of neo4j-graphrag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.retrievers.base import Retriever

from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from neo4j_graphrag_rag_accel.recognised import RECOGNISED
from rag_accel.accelerator import Accelerator
from rag_accel.interception.explanation import NOT_UNDERSTOOD, ExplainedPart, Explanation
from rag_accel.interception.leaf_table import is_composite, leaf_base, leaf_class, plain_class
from rag_accel_adapters.neo4j_graphrag.walk import walk

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


EXPLANATION = Explanation(NEO4J_GRAPHRAG, _parts)
