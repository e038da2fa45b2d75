"""The parts of a LlamaIndex program, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from llama_index_rag_accel.concurrency.composites import composite_of
from llama_index_rag_accel.leaf_table import LLAMA_INDEX, does_work
from llama_index_rag_accel.recognised import RECOGNISED
from rag_accel.config import Options
from rag_accel.interception.leaf_table import (
    is_composite,
    leaf_class,
    leaf_methods,
    plain_class,
    plain_method,
)
from rag_accel.interception.option_reach import PartOptions
from rag_accel_adapters.llama_index.walk import walk


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; those that hold others first."""
    for found in walk(obj):
        cls = plain_class(type(found.obj))
        is_leaf = does_work(cls) and not is_composite(found.obj)
        reads = frozenset(_of_methods(cls))
        if is_leaf:
            reads |= RECOGNISED.options(found.obj, options)
        yield PartOptions(found.path, cls.__name__, reads, is_leaf, obj=found.obj)


def _of_methods(cls: type) -> Iterator[str]:
    """Yield what the methods of a class read that make others' calls."""
    if leaf_class(cls).framework is not LLAMA_INDEX:
        return
    for leaf in leaf_methods(cls):
        method = plain_method(cls, leaf.name)
        if blocking_method(method) is not None:
            yield "offload_blocking"
        if composite_of(method) is not None:
            yield "parallel_calls"
