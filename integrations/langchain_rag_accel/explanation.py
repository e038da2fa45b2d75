"""Say what was understood of an accelerated program, and how each part of it runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from langchain_core.embeddings import Embeddings

from langchain_rag_accel.leaf_methods import leaf_base
from langchain_rag_accel.runnables import AcceleratedRunnable
from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel_adapters.langchain import Found, walk
from rag_accel_adapters.models import adopt_embeddings


def explain(obj: Any) -> str:
    """Return what is inside an accelerated object and how each part runs, one part a line.

    No saving is claimed: what a rewrite saves is shown by measurement only.
    """
    accelerator, inner = _unwrap(obj)
    options = accelerator.options
    lines = [
        f"{type(inner).__name__} accelerated by interception: LangChain keeps the control flow,",
        f"the leaf calls below are scheduled (batches of at most {options.max_batch},"
        f" {accelerator.cores} cores).",
    ]
    return "\n".join([*lines, *leaf_lines(inner)])


def _unwrap(obj: Any) -> tuple[Accelerator, Any]:
    if isinstance(obj, AcceleratedRunnable):
        return obj.accelerator, obj.bound
    own = getattr(type(obj), "__rag_accel_own__", None)
    return own or default_accelerator(), obj


def leaf_lines(inner: Any) -> Iterator[str]:
    """Yield one line per leaf, and per function of the user's, that is inside a program."""
    for found in walk(inner):
        said = _say(found)
        if said is not None:
            yield f"  {found.path}: {type(found.obj).__name__}: {said}"


def _say(found: Found) -> str | None:
    if inspect.isroutine(found.obj):
        name = getattr(found.obj, "__qualname__", repr(found.obj))
        return f"{name}, your own code: opaque, runs as it is on your thread or loop"
    if not found.is_leaf:
        return None
    cls = type(found.obj)
    plain = cls.__mro__[1] if getattr(cls, "__rag_accel__", False) else cls
    if isinstance(found.obj, Embeddings) and adopt_embeddings(found.obj, plain) is not None:
        return "recognised local model: owned engine, texts of all requests share batches"
    if leaf_base(cls) is None:
        return "not understood: runs plainly"
    return "borrowed: admitted by the scheduler, runs where its caller is"
