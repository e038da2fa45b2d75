"""The method by which a program of neo4j-graphrag is entered, each call of which is one request."""

from __future__ import annotations

import functools
from typing import Any

from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.retrievers.base import Retriever

from rag_accel.accelerator import Accelerator
from rag_accel.interception.twins import leaf_wrappers, program_of

PROGRAMS = (GraphRAG, Retriever)


def program_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated program differs from one of class ``cls``.

    A retriever is a leaf, too, for who asks it for its records.
    """
    leaves = leaf_wrappers(cls, own) if issubclass(cls, Retriever) else {}
    return {**leaves, "search": _entry(cls.search)}  # type: ignore[attr-defined]


def _entry(plain: Any) -> Any:
    @functools.wraps(plain)
    def search(self: Any, *args: Any, **kwargs: Any) -> Any:
        with program_of(self).call():
            return plain(self, *args, **kwargs)

    return search
