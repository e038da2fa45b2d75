"""What was understood of an accelerated program, and how each part of it runs."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.option_readers import parts_of
from langchain_rag_accel.owned_search import is_recognised
from rag_accel.accelerator import Accelerator
from rag_accel.adoption import embedding_devices, local_llms
from rag_accel.interception.explanation import (
    BORROWED,
    NO_LEAF,
    NOT_UNDERSTOOD,
    RECOGNISED_STORE,
    component,
    headline,
)
from rag_accel.interception.leaf_table import (
    is_scheduled,
    leaf_base,
    plain_class,
    plain_method,
)
from rag_accel.interception.unread_options import unread_lines
from rag_accel_adapters.langchain.models import EMBEDDINGS
from rag_accel_adapters.langchain.proxies import PROXIES
from rag_accel_adapters.langchain.walk import Found, is_users, walk


def explain_inside(inner: Any, accelerator: Accelerator) -> str:
    """Return what is inside an object that an accelerator schedules, one part a line."""
    lines = headline(inner, "LangChain", accelerator)
    return "\n".join([*lines, *leaf_lines(inner, accelerator)])


def leaf_lines(inner: Any, accelerator: Accelerator) -> list[str]:
    """Return one line per leaf, and per function of the user's, that is inside a program."""
    seen = list(walk(inner))
    lines = dict.fromkeys(
        f"  {found.path}: {said}" for found in seen if (said := _say(found, accelerator))
    )
    if not any(found.is_leaf for found in seen):
        lines.update(dict.fromkeys(NO_LEAF))
    return [*lines, *unread_lines(inner, accelerator, parts_of)]


def _say(found: Found, accelerator: Accelerator) -> str | None:
    if found.is_leaf:
        return f"{type(found.obj).__name__}: {_how(found.obj, accelerator)}"
    if not (inspect.isroutine(found.obj) or isinstance(found.obj, functools.partial)):
        return None
    if not is_users(found.obj):
        return None
    function = found.obj.func if isinstance(found.obj, functools.partial) else found.obj
    name = getattr(function, "__qualname__", repr(function))
    kind = type(found.obj).__name__
    return f"{kind}: {name}, your own code: opaque, runs as it is on your thread or loop"


def _how(leaf: Any, accelerator: Accelerator) -> str:
    cls = type(leaf)
    if is_scheduled(plain_class(cls)):
        return component(leaf, accelerator)
    is_embeddings = isinstance(leaf, Embeddings)
    adopted = EMBEDDINGS.adopt(leaf, plain_class(cls), plain_method) if is_embeddings else None
    if adopted is not None:
        return embedding_devices.describe(adopted, accelerator)
    if isinstance(leaf, VectorStore) and is_recognised(cls):
        return RECOGNISED_STORE
    model = PROXIES.language_model(leaf, plain_class(cls), plain_method)
    if model is not None:
        return local_llms.describe(accelerator, model)
    stands_in = PROXIES.describe(leaf, plain_class(cls), plain_method)
    if stands_in is not None:
        return stands_in
    if leaf_base(cls) is None:
        return NOT_UNDERSTOOD
    unused = embedding_devices.describe_unused(accelerator) if is_embeddings else ""
    return f"{BORROWED}{unused}"
