"""LlamaIndex's ``SimplePropertyGraphStore``, whose searches look through all its triplets.

What it answers is found here by an index of the triplets' ends: the same list, in the order in
which the store's own set yields them, of the store's own nodes and relations. The store stays the
truth: that neither a triplet nor a node was added, removed or replaced is seen in each search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, Final

import numpy as np
from llama_index.core.graph_stores import simple_labelled, types
from llama_index.core.graph_stores.simple_labelled import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import (
    ChunkNode,
    EntityNode,
    LabelledPropertyGraph,
    PropertyGraphStore,
    Relation,
)

from rag_accel.adoption.by_identity import ByIdentity
from rag_accel.adoption.known_classes import PlainMethod, does_the_same, is_written_in
from rag_accel.adoption.triplet_index import Places, TripletIndex

#: Triplets from which an index is faster than the store.
MIN_TRIPLETS = 64
#: What is returned where the store itself is to answer.
ITS_OWN: Final = object()

_SEARCHES = ("get_triplets", "get_rel_map")
_ASYNC_SEARCHES = tuple(f"a{name}" for name in _SEARCHES)
_GRAPH_METHODS = ("get_triplets", "_get_relation_key")


class _GraphState:
    """What a graph held at one moment, and the index of it once it was made.

    Args:
        graph: is read; nothing of it is kept but its nodes and the names in it.
    """

    def __init__(self, graph: LabelledPropertyGraph) -> None:
        self._triplets = list(graph.triplets)
        self._names = list(graph.nodes)
        self._nodes = list(graph.nodes.values())
        self._relations = list(graph.relations)
        self.index: TripletIndex | None = None
        self.is_refused = False

    def is_of(self, graph: LabelledPropertyGraph) -> bool:
        """Tell whether the graph holds the same in the same order."""
        nodes = list(graph.nodes.values())
        return (
            len(nodes) == len(self._nodes)
            and all(map(is_, nodes, self._nodes))
            and list(graph.nodes) == self._names
            and list(graph.triplets) == self._triplets
            and list(graph.relations) == self._relations
        )

    def make(self) -> None:
        """Make the index, unless the store would see in the graph something else than the names."""
        self.is_refused = not self._is_usual()
        if not self.is_refused:
            self.index = TripletIndex(self._triplets)

    def _is_usual(self) -> bool:
        """Tell whether each name is that of its node, and each triplet has its nodes."""
        kinds = (EntityNode, ChunkNode)
        named = zip(self._names, self._nodes, strict=True)
        if not all(type(node) in kinds and node.id == name for name, node in named):
            return False
        names, relations = set(self._names), set(self._relations)
        return all(
            one[0] in names and one[2] in names and _relation_key(*one) in relations
            for one in self._triplets
        )


def _relation_key(subject: str, relation: str, object_: str) -> str:
    return f"{subject}_{relation}_{object_}"


_states: ByIdentity[_GraphState] = ByIdentity()


class _Answers:
    """The searches of one graph, which is as its index has it.

    Raises _ChangedInPlaceError where a node or a relation no longer is what its name says.
    """

    def __init__(self, graph: LabelledPropertyGraph, index: TripletIndex) -> None:
        self._graph = graph
        self._index = index

    def get_triplets(
        self,
        entity_names: Any = None,
        relation_names: Any = None,
        properties: Any = None,
        ids: Any = None,
    ) -> Any:
        """Return the triplets with these entities or nodes at an end."""
        given = [names for names in (entity_names, ids) if names]
        if properties or not given or not all(map(self._are_known, given)):
            return ITS_OWN
        places = self._index.touching(given[0])
        if len(given) > 1:
            places = np.intersect1d(places, self._index.touching(given[1]))
        found = self._native(places)
        return [one for one in found if not relation_names or one[1].id in relation_names]

    def get_rel_map(
        self, graph_nodes: Any, depth: Any = 2, limit: Any = 30, ignore_rels: Any = None
    ) -> Any:
        """Return the triplets around nodes, hop by hop, up to the limit."""
        if type(depth) is not int or type(limit) is not int or limit < 0:
            return ITS_OWN
        names = [node.id for node in graph_nodes]
        if not self._are_known(names):
            return ITS_OWN
        ignored = ignore_rels or []
        found: list[Any] = []
        for places in self._index.hops(names, depth):
            for one in self._native(places):
                if len(found) >= limit:
                    return found
                if one[1].id not in ignored:
                    found.append(one)
        return found

    def _are_known(self, names: Any) -> bool:
        """Tell whether these are names of nodes; another may be one that was changed in place."""
        if type(names) not in (list, tuple, set, frozenset):
            return False
        nodes = self._graph.nodes
        return all(type(one) is str and one in nodes and nodes[one].id == one for one in names)

    def _native(self, places: Places) -> Iterable[tuple[Any, Any, Any]]:
        relations = self._graph.relations
        for place in places:
            subject, relation, object_ = self._index.triplets[place]
            link = relations[_relation_key(subject, relation, object_)]
            if type(link) is not Relation:
                raise _ChangedInPlaceError
            yield self._node(subject), link, self._node(object_)

    def _node(self, name: str) -> Any:
        node: Any = self._graph.nodes[name]
        if node.id != name:
            raise _ChangedInPlaceError
        return node


class _ChangedInPlaceError(Exception):
    """A node was given another name where it stands."""


def answers(store: SimplePropertyGraphStore, name: str) -> Callable[..., Any] | None:
    """Return a search of a recognised store by its index; None while it has none.

    The search returns ``ITS_OWN`` where what it is asked is for the store to answer. An index is
    made of a state that was met before.
    """
    graph = store.graph
    if len(graph.triplets) < MIN_TRIPLETS:
        _states.forget(graph)
        return None
    state = _states.get(graph)
    if state is None or not state.is_of(graph):
        _states.forget(graph)
        _states.add(graph, _GraphState(graph))
        return None
    if state.index is None and not state.is_refused:
        state.make()
    if state.index is None:
        return None
    search = getattr(_Answers(graph, state.index), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return search(*args, **kwargs)
        except (_ChangedInPlaceError, TypeError, AttributeError, LookupError):
            return ITS_OWN  # the store's own error is the program's

    return call


def searches_as_known(cls: type, method: PlainMethod) -> bool:
    """Tell whether stores of a class are ``SimplePropertyGraphStore`` in how they search.

    Args:
        method: returns a class's method as its program wrote it.
    """
    if not issubclass(cls, SimplePropertyGraphStore):
        return False
    return does_the_same(cls, SimplePropertyGraphStore, (*_SEARCHES, *_ASYNC_SEARCHES), method)


def searches_unchanged(store: Any, cls: type, method: PlainMethod) -> bool:
    """Tell whether nothing was put in the place of what a recognised store searches with.

    Looked at in each search: the store's own attributes, its class, which is ``cls`` as its program
    wrote it, its graph's, and LlamaIndex's functions.
    """
    own: Mapping[str, Any] = vars(store)
    graph = own.get("graph")
    if type(graph) is not LabelledPropertyGraph or not own.keys().isdisjoint(
        (*_SEARCHES, *_ASYNC_SEARCHES)
    ):
        return False
    held = vars(graph)
    if not held.keys().isdisjoint(_GRAPH_METHODS):
        return False
    if not (
        type(held["triplets"]) is set and type(held["nodes"]) is type(held["relations"]) is dict
    ):
        return False
    return (
        all(is_written_in(simple_labelled, method(cls, name)) for name in _SEARCHES)
        and all(is_written_in(types, method(cls, name)) for name in _ASYNC_SEARCHES)
        and all(is_written_in(types, getattr(LabelledPropertyGraph, one)) for one in _GRAPH_METHODS)
        and issubclass(cls, PropertyGraphStore)
    )
