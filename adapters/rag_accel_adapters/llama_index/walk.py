"""The inside of LlamaIndex programs: which objects they hold, and at which positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.storage.index_store.types import BaseIndexStore
from llama_index.core.storage.storage_context import StorageContext
from workflows import Workflow

from rag_accel.system.thread_safety import attributes_of

#: The most objects looked at; what is in a program beyond them is scheduled all the same.
MAX_OBJECTS = 2000

#: These hold data, and nothing that does work.
_DATA = (
    *(BaseNode, BaseDocumentStore, BaseIndexStore, IndexStruct, CallbackManager),
    StorageContext,  # an index holds what it uses of it
)


@dataclass(frozen=True, slots=True)
class FoundPart:
    """One object of a program.

    Args:
        path: its position, the first of the shortest.
        obj: the object.
        around: what it stands in, outermost first.
    """

    path: str
    obj: Any
    around: tuple[Any, ...] = ()


def walk(obj: Any, path: str = "program") -> Iterator[FoundPart]:
    """Yield every object of LlamaIndex's, or of a subclass, once; those that hold it before it."""
    waiting, seen = deque([FoundPart(path, obj)]), {id(obj): obj}
    while waiting:
        found = waiting.popleft()
        yield found
        for name, child in _children(found.obj):
            if id(child) not in seen and len(seen) < MAX_OBJECTS:
                seen[id(child)] = child
                waiting.append(FoundPart(f"{found.path}.{name}", child, (*found.around, found.obj)))


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(obj, "__dict__"):
        return
    for name, value in attributes_of(obj).items():
        yield from _parts_in(name.strip("_"), value)


def _parts_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or those in a list or dict, if it may do work."""
    if type(value) in (list, tuple):
        for place, one in enumerate(value):
            if _may_do_work(one):
                yield f"{name}.{place}", one
    elif type(value) is dict:
        for key, one in value.items():
            if _may_do_work(one):
                yield f"{name}.{key}", one
    elif _may_do_work(value):
        yield name, value


def _may_do_work(obj: Any) -> bool:
    if isinstance(obj, (type, BasePromptTemplate, *_DATA)):
        return False
    bases = type(obj).__mro__
    return isinstance(obj, Workflow) or any(
        base.__module__.startswith("llama_index.") for base in bases
    )
