"""Property graphs of LlamaIndex's own, and what their searches show."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, Relation


def graph_of(seed: int, nodes: int = 40, relations: int = 120) -> SimplePropertyGraphStore:
    """Return a store with loops, hubs, nodes without an edge and several edges between two."""
    rng = Random(seed)
    store = SimplePropertyGraphStore()
    store.upsert_nodes([EntityNode(name=f"e{at}", properties={"at": at}) for at in range(nodes)])
    store.upsert_relations(
        [
            Relation(
                label=f"r{rng.randrange(4)}",
                source_id=f"e{min(int(rng.paretovariate(0.6)), nodes - 1)}",
                target_id=f"e{rng.randrange(nodes)}",
            )
            for _ in range(relations)
        ]
    )
    return store


def some_nodes(store: SimplePropertyGraphStore, rng: Random, most: int = 4) -> list[Any]:
    """Return some nodes, perhaps none and perhaps one several times."""
    return rng.choices(list(store.graph.nodes.values()), k=rng.randint(0, most))


def outcome(store: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the identities of what is found, in order, or the error's class and text."""
    try:
        found = getattr(store, name)(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return [tuple(map(id, one)) for one in found]
