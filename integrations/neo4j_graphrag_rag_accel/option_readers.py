"""The parts of a program of neo4j-graphrag, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from neo4j_graphrag_rag_accel.recognised import RECOGNISED
from rag_accel.config import Options
from rag_accel.interception.leaf_table import (
    is_composite,
    is_scheduled,
    leaf_class,
    plain_class,
)
from rag_accel.interception.option_reach import READERS, PartOptions
from rag_accel_adapters.neo4j_graphrag.walk import walk


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; those that hold others first."""
    for path, part in walk(obj):
        cls = plain_class(type(part))
        known = leaf_class(cls)
        is_leaf = known.base is not None and not is_composite(part)
        is_anothers = known.base is not None and known.framework is not NEO4J_GRAPHRAG
        # What another framework's leaf reads, its own integration tells.
        is_open = is_anothers and not is_scheduled(cls)
        reads = frozenset(READERS) if is_open else RECOGNISED.options(part, options)
        yield PartOptions(path, cls.__name__, reads, is_leaf, obj=part)
