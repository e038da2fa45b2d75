"""Explanations of accelerated LangChain programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.graph_transformers import is_graph_transformer
from langchain_rag_accel.leaf_table import LANGCHAIN
from langchain_rag_accel.owned_search import is_recognised, why_not_searched
from langchain_rag_accel.parallel_calls import how_spread
from langchain_rag_accel.plan import make_graph
from langchain_rag_accel.recognised import RECOGNISED
from rag_accel.accelerator import Accelerator
from rag_accel.interception.explanation import (
    AROUND_LEAVES,
    NOT_UNDERSTOOD,
    ExplainedPart,
    Explanation,
    recognised_store,
)
from rag_accel.interception.leaf_table import is_composite, leaf_base
from rag_accel_adapters.langchain.walk import Found, is_function, is_users, walk


def _parts(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    """Yield the leaves that are inside a program, and the functions of the user's."""
    if is_graph_transformer(program):
        lines = (f"{type(program).__name__}.{said}" for said in how_spread(program, accelerator))
        yield ExplainedPart("program", tuple(lines), is_leaf=False)
    for found in walk(program):
        is_leaf = found.is_leaf and not is_composite(found.obj)
        yield ExplainedPart(found.path, tuple(_lines(found, accelerator)), is_leaf)


def _lines(found: Found, accelerator: Accelerator) -> Iterator[str]:
    kind = type(found.obj).__name__
    if found.is_leaf:
        yield f"{kind}: {_how(found.obj, accelerator)}"
        yield from (f"{kind}.{said}" for said in how_spread(found.obj, accelerator))
    elif is_function(found.obj) and is_users(found.obj):
        function = found.obj.func if isinstance(found.obj, functools.partial) else found.obj
        name = getattr(function, "__qualname__", repr(function))
        yield f"{kind}: {name}, your own code: opaque, runs as it is on your thread or loop"


def _how(leaf: Any, accelerator: Accelerator) -> str:
    described = RECOGNISED.describe(leaf, accelerator, _searched)
    if described is not None:
        return described
    if leaf_base(type(leaf)) is None:
        return NOT_UNDERSTOOD
    if is_composite(leaf):
        return AROUND_LEAVES
    return RECOGNISED.borrowed(leaf, accelerator)


def _searched(leaf: Any) -> str | None:
    is_ours = isinstance(leaf, VectorStore) and is_recognised(type(leaf))
    return recognised_store(why_not_searched(leaf)) if is_ours else None


EXPLANATION = Explanation(LANGCHAIN, _parts, make_graph)
