"""The parts of a LlamaIndex program, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.embeddings import BaseEmbedding

from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from llama_index_rag_accel.concurrency.composites import composite_of
from llama_index_rag_accel.leaf_table import LLAMA_INDEX, does_work
from rag_accel.config import Options
from rag_accel.interception.leaf_table import (
    is_composite,
    is_scheduled,
    leaf_class,
    leaf_methods,
    plain_class,
    plain_method,
)
from rag_accel.interception.option_reach import (
    ADOPTED_EMBEDDINGS,
    ADOPTED_LLM,
    PartOptions,
    component_options,
)
from rag_accel_adapters.llama_index.models import EMBEDDINGS
from rag_accel_adapters.llama_index.proxies import PROXIES
from rag_accel_adapters.llama_index.walk import walk


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; those that hold others first."""
    for found in walk(obj):
        cls = plain_class(type(found.obj))
        is_leaf = does_work(cls) and not is_composite(found.obj)
        reads = frozenset(_of_methods(cls))
        if is_leaf:
            reads |= _of_work(found.obj, cls, options)
        yield PartOptions(found.path, cls.__name__, reads, is_leaf)


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


def _of_work(obj: Any, cls: type, options: Options) -> frozenset[str]:
    if is_scheduled(cls):
        return component_options(obj, options)
    reads = frozenset[str]()
    if isinstance(obj, BaseEmbedding):
        adopted = EMBEDDINGS.adopt(obj, cls, plain_method)
        if adopted is not None and adopted.hosted is None:
            reads |= ADOPTED_EMBEDDINGS
    if PROXIES.language_model(obj, cls, plain_method) is not None:
        reads |= ADOPTED_LLM
    return reads
