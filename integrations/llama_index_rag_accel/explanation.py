"""Explanations of accelerated LlamaIndex programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever

from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from llama_index_rag_accel.concurrency.offload import reason_to_stay
from llama_index_rag_accel.entries import is_program
from llama_index_rag_accel.indexed_graph import why_not_shared
from llama_index_rag_accel.leaf_table import LLAMA_INDEX, does_work
from llama_index_rag_accel.owned_search import is_recognised, why_not_searched
from llama_index_rag_accel.recognised import RECOGNISED
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.explanation import (
    AROUND_LEAVES,
    BORROWED,
    GRAPH_RETRIEVAL,
    ExplainedPart,
    Explanation,
    recognised_store,
)
from rag_accel.interception.leaf_table import (
    is_composite,
    leaf_class,
    leaf_methods,
    plain_class,
    plain_method,
)
from rag_accel_adapters.llama_index.plan import graph_of
from rag_accel_adapters.llama_index.proxies import PROXIES
from rag_accel_adapters.llama_index.walk import FoundPart, walk

_PROGRAM = f"{AROUND_LEAVES}, each call or run of it is one request"
_PART = f"{AROUND_LEAVES}, as part of a request"


def _parts(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    for found in walk(program):
        lines = tuple(_lines(found, accelerator))
        yield ExplainedPart(found.path, lines, _is_leaf(found.obj))


def _is_leaf(obj: Any) -> bool:
    """Tell whether an object does work itself rather than having others do it."""
    return does_work(type(obj)) and not is_composite(obj)


def _lines(found: FoundPart, accelerator: Accelerator) -> Iterator[str]:
    obj = found.obj
    name = type(obj).__name__
    if _is_leaf(obj):
        yield f"{name}: {_how(found, accelerator)}"
    elif is_program(obj):
        yield f"{name}: {_PART if found.around else _PROGRAM}"
    elif isinstance(obj, BaseIndex):
        yield f"{name}: what it makes is accelerated, each insertion is a request"
    yield from (f"{name}.{said}" for said in _on_loop(obj, accelerator))


def _how(found: FoundPart, accelerator: Accelerator) -> str:
    described = RECOGNISED.describe(found.obj, accelerator, _searched)
    if described is not None:
        return described
    if _is_inner(found):
        return "part of the leaf that holds it: runs within its call"
    return RECOGNISED.borrowed(found.obj, accelerator)


def _searched(leaf: Any) -> str | None:
    if isinstance(leaf, BasePGRetriever):
        reason = why_not_shared(leaf)
        return GRAPH_RETRIEVAL if reason is None else f"{BORROWED} (no graph retrieval: {reason})"
    return recognised_store(why_not_searched(leaf)) if is_recognised(type(leaf)) else None


def _is_inner(found: FoundPart) -> bool:
    """Tell whether a leaf that holds an object counts its calls as its own."""
    holders = (holder for holder in found.around if _is_leaf(holder))
    kinds = {leaf.kind for holder in holders for leaf in leaf_methods(type(holder))}
    inner = tuple(base for kind in kinds for base in LLAMA_INDEX.inner.get(kind, ()))
    return isinstance(found.obj, inner)


def _on_loop(obj: Any, accelerator: Accelerator) -> Iterator[str]:
    """Yield where the async methods run that upstream lets block their loop, together."""
    cls = type(obj)
    methods = leaf_methods(cls) if leaf_class(cls).framework is LLAMA_INDEX else ()
    options = accelerator.options
    has_proxy = PROXIES.describe(obj, plain_class(cls), plain_method, options) is not None
    by_place: dict[str, list[str]] = {}
    for leaf in methods:
        known = blocking_method(plain_method(plain_class(cls), leaf.name))
        if known is None:
            continue
        reason = reason_to_stay(
            known, obj, accelerator, is_search=has_proxy and leaf.kind is PrimitiveKind.SEARCHING
        )
        where = "leaves its loop free" if reason is None else f"blocks its loop: {reason}"
        by_place.setdefault(where, []).append(leaf.name)
    for where, (first, *others) in by_place.items():
        yield f"{first} {where}" + (f"; the same for {', '.join(others)}" if others else "")


EXPLANATION = Explanation(LLAMA_INDEX, _parts, graph_of)
