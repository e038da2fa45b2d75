"""The parts of a program of neo4j-graphrag, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from rag_accel.config import Options
from rag_accel.interception.leaf_table import (
    is_composite,
    is_scheduled,
    leaf_class,
    plain_class,
    plain_method,
)
from rag_accel.interception.option_reach import (
    ADOPTED_EMBEDDINGS,
    READERS,
    PartOptions,
    component_options,
)
from rag_accel_adapters.neo4j_graphrag.models import EMBEDDERS
from rag_accel_adapters.neo4j_graphrag.walk import walk


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; those that hold others first."""
    for path, part in walk(obj):
        cls = plain_class(type(part))
        known = leaf_class(cls)
        is_leaf = known.base is not None and not is_composite(part)
        yield PartOptions(path, cls.__name__, _reads(part, cls, options), is_leaf)


def _reads(part: Any, cls: type, options: Options) -> frozenset[str]:
    if is_scheduled(cls):
        return component_options(part, options)
    framework = leaf_class(cls).framework
    if leaf_class(cls).base is not None and framework is not NEO4J_GRAPHRAG:
        return frozenset(READERS) - {"mode"}  # its own integration tells which
    adopted = EMBEDDERS.adopt(part, cls, plain_method)
    is_local = adopted is not None and adopted.hosted is None
    return ADOPTED_EMBEDDINGS if is_local else frozenset()
