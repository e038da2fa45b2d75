"""The parts of a LangChain program, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_rag_accel.graph_transformers import is_graph_transformer
from langchain_rag_accel.parallel_calls import is_spread
from langchain_rag_accel.recognised import RECOGNISED
from rag_accel.config import Options
from rag_accel.interception.leaf_table import (
    is_composite,
    is_scheduled,
    plain_class,
)
from rag_accel.interception.option_reach import PartOptions
from rag_accel_adapters.langchain.walk import is_users, walk

_SPREAD = frozenset({"parallel_calls"})


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; the program itself first."""
    if is_graph_transformer(obj):
        yield PartOptions("program", plain_class(type(obj)).__name__, _SPREAD)
    for found in walk(obj):
        cls = plain_class(type(found.obj))
        if found.is_leaf:
            reads = RECOGNISED.options(found.obj, options)
            if is_spread(cls) and not is_scheduled(cls):
                reads |= _SPREAD
            is_leaf = not is_composite(found.obj)
            yield PartOptions(found.path, cls.__name__, reads, is_leaf, obj=found.obj)
        elif callable(found.obj) and is_users(found.obj):
            yield PartOptions(found.path, cls.__name__)
