"""Searches of an in-memory property graph by an index: its lists, its order, its objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import EntityNode, LabelledPropertyGraph, Relation
from llama_index.core.indices.property_graph import CustomPGRetriever, PGRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.interception.leaf_table import plain_method
from rag_accel_adapters.llama_index import graph_stores

REL_MAP, TRIPLETS = "get_rel_map", "get_triplets"


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


@pytest.fixture
def store() -> SimplePropertyGraphStore:
    """Give a random graph."""
    return graph_of(1)


def search(store: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Return the outcome of a search that was made often enough for an index."""
    for _ in range(2):
        outcome(store, name, args, kwargs)
    return outcome(store, name, args, kwargs)


def is_ready(store: Any) -> bool:
    """Tell whether there is an index of a store as it is."""
    return graph_stores.answers(store, REL_MAP) is not None


@pytest.mark.parametrize("seed", range(12))
def test_what_is_around_nodes_is_what_the_store_finds(accelerator: Accelerator, seed: int) -> None:
    store, rng = graph_of(seed), Random(seed)
    fast = accelerate(store, accelerator=accelerator)
    for _ in range(25):
        args = {
            "graph_nodes": some_nodes(store, rng),
            "depth": rng.randint(0, 4),
            "limit": rng.choice([0, 1, 5, 30, 10_000]),
            "ignore_rels": rng.choice([None, [], ["r1"], ("r0", "r2"), "r3"]),
        }
        assert outcome(fast, REL_MAP, (), args) == outcome(store, REL_MAP, (), args)
    assert is_ready(store)


@pytest.mark.parametrize("seed", range(6))
def test_triplets_are_those_that_the_store_finds(accelerator: Accelerator, seed: int) -> None:
    store, rng = graph_of(seed), Random(seed)
    fast = accelerate(store, accelerator=accelerator)
    for _ in range(25):
        args = {
            "ids": rng.choice([None, [one.id for one in some_nodes(store, rng)]]),
            "entity_names": rng.choice([None, [one.id for one in some_nodes(store, rng)]]),
            "relation_names": rng.choice([None, ["r1", "r2"]]),
            "properties": rng.choice([None, None, {"at": 3}]),
        }
        assert outcome(fast, TRIPLETS, (), args) == outcome(store, TRIPLETS, (), args)


@pytest.mark.parametrize(
    "args",
    [
        {"graph_nodes": []},
        {"graph_nodes": None},
        {"graph_nodes": ["e1"]},
        {"depth": "2"},
        {"depth": -1},
        {"depth": True},
        {"limit": -2},
        {"limit": None},
        {"limit": 2.5},
        {"ignore_rels": 7},
        {"other": 1},
    ],
    ids=str,
)
def test_odd_arguments_end_as_they_do_plainly(
    store: SimplePropertyGraphStore, accelerator: Accelerator, args: dict[str, Any]
) -> None:
    args = {"graph_nodes": [store.graph.nodes["e1"]], **args}
    fast = accelerate(store, accelerator=accelerator)
    assert search(fast, REL_MAP, **args) == outcome(store, REL_MAP, (), args)


def _reordered(store: SimplePropertyGraphStore) -> None:
    """Put what the set holds into another order."""
    held = sorted(store.graph.triplets, key=lambda one: one[::-1])
    store.graph.triplets.clear()
    store.graph.triplets.update(["x" * at for at in range(5000)])  # type: ignore[arg-type]
    store.graph.triplets.clear()
    store.graph.triplets.update(held)


Change = Callable[[SimplePropertyGraphStore], object]
CHANGES: dict[str, Change] = {
    "relation added": lambda store: store.upsert_relations(
        [Relation(label="r9", source_id="e1", target_id="e2")]
    ),
    "relation deleted": lambda store: store.graph.delete_relation(
        next(iter(store.graph.relations.values()))
    ),
    "relation replaced": lambda store: store.graph.relations.update(
        {key: Relation(**one.model_dump()) for key, one in store.graph.relations.items()}
    ),
    "node replaced": lambda store: store.upsert_nodes([EntityNode(name="e1", label="new")]),
    "node deleted": lambda store: store.graph.delete_node(store.graph.nodes["e1"]),
    "triplets deleted": lambda store: store.delete(relation_names=["r1"]),
    "deleted by id": lambda store: store.delete(ids=["e2"]),
    "other order": _reordered,
    "other graph": lambda store: setattr(store, "graph", graph_of(7).graph),
    "no graph": lambda store: setattr(store, "graph", LabelledPropertyGraph()),
    "renamed in place": lambda store: setattr(store.graph.nodes["e1"], "name", "renamed"),
    "relation renamed in place": lambda store: [
        setattr(one, "label", "r0") for one in store.graph.relations.values()
    ],
    "a list for a set": lambda store: setattr(
        store.graph, "triplets", sorted(store.graph.triplets)
    ),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_is_seen_by_the_next_search(
    store: SimplePropertyGraphStore, accelerator: Accelerator, how: str
) -> None:
    fast = accelerate(store, accelerator=accelerator)
    args = {"graph_nodes": [store.graph.nodes["e1"]], "limit": 1000, "ignore_rels": ["r2"]}
    search(fast, REL_MAP, **args)
    assert is_ready(store)
    CHANGES[how](store)
    expected = outcome(store, REL_MAP, (), args)
    assert outcome(fast, REL_MAP, (), args) == expected
    assert search(fast, REL_MAP, **args) == expected


def test_nodes_whose_id_is_not_the_name_they_stand_under_are_left_to_the_store(
    store: SimplePropertyGraphStore, accelerator: Accelerator
) -> None:
    store.upsert_relations([Relation(label="r", source_id='the "quoted"', target_id="e1")])
    fast = accelerate(store, accelerator=accelerator)
    args = {"graph_nodes": [EntityNode(name='the "quoted"')]}
    assert search(fast, REL_MAP, **args) == outcome(store, REL_MAP, (), args)
    assert not is_ready(store)


class OtherGraph(SimplePropertyGraphStore):
    """A store that finds nothing."""

    def get_triplets(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return nothing."""
        return []


def test_a_store_with_searches_of_its_own_is_asked_itself(accelerator: Accelerator) -> None:
    store = OtherGraph(graph_of(1).graph)
    fast = accelerate(store, accelerator=accelerator)
    assert search(fast, REL_MAP, [store.graph.nodes["e1"]]) == []


@pytest.mark.parametrize("name", [TRIPLETS, "graph_get_triplets"])
def test_a_search_put_in_the_place_of_its_own_is_called(
    store: SimplePropertyGraphStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    owner: Any = store if name == TRIPLETS else LabelledPropertyGraph
    fast = accelerate(store, accelerator=accelerator)
    search(fast, REL_MAP, [store.graph.nodes["e1"]])
    monkeypatch.setattr(owner, TRIPLETS, lambda *_, **__: [])
    assert fast.get_rel_map([store.graph.nodes["e1"]]) == []


class Around(CustomPGRetriever):
    """Finds what is around a node of the query's name."""

    def init(self) -> None:
        """Need nothing."""

    def custom_retrieve(self, query_str: str) -> list[NodeWithScore]:
        """Return triplets as nodes."""
        found = self._graph_store.get_rel_map(self._graph_store.get(ids=[query_str]))
        return [NodeWithScore(node=TextNode(text=f"{one[0]} {one[1]} {one[2]}")) for one in found]


@pytest.mark.parametrize("use_async", [False, True])
def test_retrievers_inside_a_program_search_by_the_index(
    store: SimplePropertyGraphStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    use_async: bool,
) -> None:
    retriever = PGRetriever([Around(store)], use_async=use_async)
    texts = [one.text for one in retriever.retrieve("e1")]
    original: Any = plain_method(SimplePropertyGraphStore, REL_MAP)
    with activate(accelerator=accelerator):
        for _ in range(3):
            retriever.retrieve("e1")
        monkeypatch.setattr(graph_stores, "MIN_TRIPLETS", 1)
        asked = list[str]()
        answers = graph_stores._Answers.get_rel_map
        monkeypatch.setattr(
            graph_stores._Answers,
            REL_MAP,
            lambda self, *args, **kwargs: (asked.append("index"), answers(self, *args, **kwargs))[
                1
            ],
        )
        assert [one.text for one in retriever.retrieve("e1")] == texts
    assert asked == ["index"]
    assert plain_method(SimplePropertyGraphStore, REL_MAP) is original


def test_an_error_of_the_index_leaves_the_search_to_the_store(
    store: SimplePropertyGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Accelerator() as accelerator:
        fast = accelerate(store, accelerator=accelerator)
        args = {"graph_nodes": [store.graph.nodes["e1"]]}
        search(fast, REL_MAP, **args)

        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("damaged")

        monkeypatch.setattr(graph_stores._Answers, REL_MAP, fail)
        assert outcome(fast, REL_MAP, (), args) == outcome(store, REL_MAP, (), args)
        assert sum(accelerator.bypassed.values()) == 1
