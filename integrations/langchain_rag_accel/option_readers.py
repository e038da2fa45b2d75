"""The parts of a LangChain program, and which options of its accelerator each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable

from langchain_rag_accel.graph_transformers import is_graph_transformer
from langchain_rag_accel.leaf_table import LANGCHAIN
from langchain_rag_accel.parallel_calls import is_spread
from rag_accel.config import Options
from rag_accel.interception.leaf_table import is_scheduled, leaf_class, plain_class, plain_method
from rag_accel.interception.option_reach import (
    ADOPTED_EMBEDDINGS,
    ADOPTED_LLM,
    PartOptions,
    component_options,
)
from rag_accel_adapters.langchain.langgraph_parts import is_graph
from rag_accel_adapters.langchain.models import EMBEDDINGS
from rag_accel_adapters.langchain.proxies import PROXIES
from rag_accel_adapters.langchain.walk import is_users, walk

_SPREAD = frozenset({"mode", "parallel_calls"})


def parts_of(obj: Any, options: Options) -> Iterator[PartOptions]:
    """Yield the parts of a program with what each reads; the program itself first."""
    name = plain_class(type(obj)).__name__
    if is_graph_transformer(obj):
        yield PartOptions("program", name, _SPREAD)
    elif _is_chain(obj):
        yield PartOptions("program", name, frozenset({"mode"}))
    for found in walk(obj):
        cls = plain_class(type(found.obj))
        if found.is_leaf:
            reads = _reads(found.obj, cls, options)
            is_alone = found.obj is obj
            yield PartOptions(found.path, cls.__name__, reads, True, has_no_steps=is_alone)
        elif callable(found.obj) and is_users(found.obj):
            yield PartOptions(found.path, cls.__name__)


def _is_chain(obj: Any) -> bool:
    """Tell whether ``mode="translate"`` makes a graph of an object."""
    is_leaf = leaf_class(type(obj)).framework is LANGCHAIN
    return isinstance(obj, Runnable) and not is_leaf and not is_graph(obj)


def _reads(leaf: Any, cls: type, options: Options) -> frozenset[str]:
    if is_scheduled(cls):
        return component_options(leaf, options)
    reads = _SPREAD if is_spread(cls) else frozenset[str]()
    if isinstance(leaf, Embeddings):
        adopted = EMBEDDINGS.adopt(leaf, cls, plain_method)
        if adopted is not None and adopted.hosted is None:
            reads |= ADOPTED_EMBEDDINGS
    if PROXIES.language_model(leaf, cls, plain_method) is not None:
        reads |= ADOPTED_LLM
    return reads
