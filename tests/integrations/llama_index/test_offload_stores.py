"""Stores' default async methods leave the loop free for classes that the user names."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from li_off_loop import knowing
from li_programs import run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery
from pydantic import PrivateAttr

from llama_index_rag_accel import accelerate


def _watched(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._calls.append((name, args, kwargs, threading.get_ident()))
        return f"made by {name}"

    return method


VECTOR_METHODS = ("add", "delete", "delete_nodes", "get_nodes", "clear")
GRAPH_METHODS = (
    *("get", "get_triplets", "get_rel_map", "structured_query", "vector_query"),
    *("upsert_nodes", "upsert_relations", "delete", "delete_llama_nodes", "get_schema"),
)


class VectorStore(SimpleVectorStore):
    """A vector store of the user's without async methods of its own."""

    _calls: list[Any] = PrivateAttr(default_factory=list)

    async_add = BasePydanticVectorStore.async_add
    add, delete, delete_nodes, get_nodes, clear = map(_watched, VECTOR_METHODS)


class GraphStore(SimplePropertyGraphStore):
    """A graph store of the user's without async methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Any] = []


for _name in GRAPH_METHODS:
    setattr(GraphStore, _name, _watched(_name))


class OwnAsync(VectorStore):
    """A store whose class deletes in its own way."""

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Note the thread."""
        self._calls.append(("own", (ref_doc_id,), delete_kwargs, threading.get_ident()))


NODES = [TextNode(text="a", id_="a", embedding=[1.0, 0.0])]
ENTITIES = [EntityNode(name="a")]
CALLS: dict[str, tuple[type, str, tuple[Any, ...], dict[str, Any]]] = {
    "async_add": (VectorStore, "async_add", (NODES,), {"more": 1}),
    "adelete of vectors": (VectorStore, "adelete", ("a",), {"more": 1}),
    "adelete_nodes": (VectorStore, "adelete_nodes", (["a"],), {"dropped": 1}),
    "aget_nodes": (VectorStore, "aget_nodes", (), {"node_ids": ["a"]}),
    "aclear": (VectorStore, "aclear", (), {}),
    "aget": (GraphStore, "aget", (), {"ids": ["a"]}),
    "aget_triplets": (GraphStore, "aget_triplets", (["a"],), {}),
    "aget_rel_map": (GraphStore, "aget_rel_map", (ENTITIES,), {"depth": 1}),
    "aupsert_nodes": (GraphStore, "aupsert_nodes", (ENTITIES,), {}),
    "aupsert_relations": (
        GraphStore,
        "aupsert_relations",
        ([Relation(label="to", source_id="a", target_id="a")],),
        {},
    ),
    "adelete of a graph": (GraphStore, "adelete", (["a"],), {}),
    "adelete_llama_nodes": (GraphStore, "adelete_llama_nodes", (["a"],), {}),
    "astructured_query": (GraphStore, "astructured_query", ("q", {"a": 1}), {}),
    "avector_query": (GraphStore, "avector_query", (VectorStoreQuery([1.0]),), {"more": 1}),
    "aget_schema": (GraphStore, "aget_schema", (), {"refresh": True}),
}
every_call = pytest.mark.parametrize(("cls", "name", "args", "kwargs"), CALLS.values(), ids=CALLS)


def called(store: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Return what a method gives."""

    async def call() -> Any:
        return await getattr(store, name)(*args, **kwargs), threading.get_ident()

    return run_in_loop(call())


@every_call
def test_the_sync_method_is_asked_for_the_same_off_the_loop(
    cls: Any, name: str, args: Any, kwargs: Any
) -> None:
    plain, inner = cls(), cls()
    with knowing(cls) as accelerator:
        fast = accelerate(inner, accelerator=accelerator)
        found, loop = called(fast, name, args, kwargs)
    assert loop not in [one[3] for one in inner._calls]
    assert found == called(plain, name, args, kwargs)[0]
    assert [one[:3] for one in inner._calls] == [one[:3] for one in plain._calls]


@every_call
def test_a_class_that_is_not_named_stays_on_its_loop(
    cls: Any, name: str, args: Any, kwargs: Any
) -> None:
    store = cls()
    with knowing() as accelerator:
        _, loop = called(accelerate(store, accelerator=accelerator), name, args, kwargs)
    assert [one[3] for one in store._calls] == [loop]


def test_a_class_that_deletes_in_its_own_way_is_left_to_it() -> None:
    store = OwnAsync()
    with knowing(OwnAsync) as accelerator:
        _, loop = called(accelerate(store, accelerator=accelerator), "adelete", ("a",), {})
    assert [(one[0], one[3]) for one in store._calls] == [("own", loop)]
