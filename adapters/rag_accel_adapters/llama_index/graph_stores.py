"""LlamaIndex's ``SimplePropertyGraphStore``, whose searches look through all its triplets.

What it answers is found here by an index of the triplets' ends: the same list, in the order in
which the store's own set yields them, of the store's own nodes and relations. The store stays the
truth: that neither a triplet nor a node was added, removed or replaced is seen in each search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any, Final
from weakref import ref

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
from llama_index.core.indices.property_graph import LLMSynonymRetriever, VectorContextRetriever
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever

from rag_accel.adoption.known_classes import ClassRow
from rag_accel.adoption.triplets import (
    Numbers,
    Places,
    TripletGraph,
    TripletIndex,
    TripletView,
    TripletWalk,
)
from rag_accel.system.classes import does_the_same, full_name, is_written_in
from rag_accel.system.methods import digest_of, plain_class, plain_method
from rag_accel.system.weak_maps import WeakIdDict
from rag_accel_adapters.libraries.as_shipped import PlainMethod, WrittenMethods

#: Triplets from which an index is faster than the store.
MIN_TRIPLETS = 64
#: Triplets from which a step that requests share is faster than the store.
MIN_SHARED_TRIPLETS = 1024
#: What is returned where the store itself is to answer.
ITS_OWN: Final = object()

_SEARCHES = ("get_triplets", "get_rel_map")
#: What tells the code of these as it was read, in llama-index-core 0.14.25: the index repeats what
#: they do, and a later version may do something else.
_READ = {"get_triplets": "b6d5c5cf2c1e0a5f", "get_rel_map": "44b0d417d5915a11"}
_ASYNC_SEARCHES = tuple(f"a{name}" for name in _SEARCHES)
_GRAPH_METHODS = ("get_triplets", "_get_relation_key")


class _GraphState:
    """The contents of a graph at one moment, and the index of it once it was made.

    Args:
        graph: is read; nothing of it is kept but its nodes and the names in it.
    """

    def __init__(self, graph: LabelledPropertyGraph) -> None:
        self._triplets = list(graph.triplets)
        self._names = list(graph.nodes)
        self._nodes = list(graph.nodes.values())
        self._relations = list(graph.relations)
        self.index: TripletIndex | None = None
        #: the index for the first hop of a search that shares steps, and for later ones
        self.views: tuple[TripletView, TripletView] | None = None
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

    def make(self, graph: LabelledPropertyGraph) -> None:
        """Make the index, unless the store would see in the graph something else than the names."""
        self.is_refused = not self._is_usual()
        if not self.is_refused:
            index = TripletIndex(self._triplets)
            checked = TripletView(index, partial(_is_still, ref(self), ref(graph)))
            self.index, self.views = index, (checked, TripletView(index))

    def _is_usual(self) -> bool:
        """Tell whether each name is that of its node, and each triplet has its nodes."""
        kinds = (EntityNode, ChunkNode)
        named = zip(self._names, self._nodes, strict=True)
        if not all(type(node) in kinds and node.id == name for name, node in named):
            return False
        names, relations = set(self._names), set(self._relations)
        return all(
            triplet[0] in names and triplet[2] in names and _relation_key(*triplet) in relations
            for triplet in self._triplets
        )


def _is_still(state: ref[_GraphState], graph: ref[LabelledPropertyGraph]) -> bool:
    """Tell whether both are there yet, and the graph is in that state."""
    known, held = state(), graph()
    return known is not None and held is not None and known.is_of(held)


def _relation_key(subject: str, relation: str, object_: str) -> str:
    return f"{subject}_{relation}_{object_}"


_states: WeakIdDict[_GraphState] = WeakIdDict()
_graphs: WeakIdDict[TripletGraph] = WeakIdDict()


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
        found = self.native(places)
        return [
            triplet for triplet in found if not relation_names or triplet[1].id in relation_names
        ]

    def get_rel_map(
        self, graph_nodes: Any, depth: Any = 2, limit: Any = 30, ignore_rels: Any = None
    ) -> Any:
        """Return the triplets around nodes, hop by hop, up to the limit."""
        search = self.around(graph_nodes, depth, limit, ignore_rels)
        if search is None:
            return ITS_OWN
        while len(search.frontier):
            search.take(self._index.around(search.frontier))
        return search.found

    def around(
        self, graph_nodes: Any, depth: Any = 2, limit: Any = 30, ignore_rels: Any = None
    ) -> RelMap | None:
        """Return the same search before its first hop; None where it is the store's own."""
        if type(depth) is not int or type(limit) is not int or limit < 0:
            return None
        names = [node.id for node in graph_nodes]
        if not self._are_known(names):
            return None
        walk = TripletWalk(self._index, names, depth)
        return RelMap(walk, self.native, limit, ignore_rels or [])

    def _are_known(self, names: Any) -> bool:
        """Tell whether these are names of nodes; another may be one that was changed in place."""
        if type(names) not in (list, tuple, set, frozenset):
            return False
        nodes = self._graph.nodes
        return all(type(name) is str and name in nodes and nodes[name].id == name for name in names)

    def native(self, places: Places) -> Iterable[tuple[Any, Any, Any]]:
        """Yield the graph's own nodes and relations of triplets."""
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


#: What a search by an index meets where its graph is no longer as the index has it, or where its
#: arguments are odd; the store's own error is the program's.
_LEFT_TO_STORE = (_ChangedInPlaceError, TypeError, AttributeError, LookupError)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RelMap:
    """One ``get_rel_map``, a hop at a time.

    Args:
        walk: over the index of the triplets.
        native: yields the triplets at some places as the store gives them.
        limit: most triplets that are found.
        ignored: labels of relations that are not.
    """

    walk: TripletWalk
    native: Callable[[Places], Iterable[tuple[Any, Any, Any]]]
    limit: int
    ignored: Any
    found: list[Any] = field(init=False, default_factory=list[Any])

    @property
    def frontier(self) -> Numbers:
        """Return the nodes to make the next hop from; none where nothing more is to be found."""
        frontier = self.walk.frontier
        return frontier if len(self.found) < self.limit else frontier[:0]

    def take(self, around: Places) -> None:
        """Take what touches the frontier; what is beyond the limit is not looked at."""
        for triplet in self.native(self.walk.take(around)):
            if len(self.found) >= self.limit:
                return
            if triplet[1].id not in self.ignored:
                self.found.append(triplet)


@dataclass(frozen=True, slots=True)
class SharedSearches:
    """Searches of one graph whose hops share the steps of an engine.

    Args:
        graph: what the engine runs.
        holder: with which the engine lives and goes.
        checked: the view for the first hop, in which the store is looked at.
        unchecked: the view for later hops.
        around: returns a search before its first hop.
    """

    graph: TripletGraph
    holder: Any
    checked: TripletView
    unchecked: TripletView
    around: Callable[..., RelMap | None]

    def begin(self, *args: Any, **kwargs: Any) -> RelMap | None:
        """Return a search before its first hop; None where it is the store's own."""
        try:
            return self.around(*args, **kwargs)
        except _LEFT_TO_STORE:
            return None

    def take(self, search: RelMap, around: Places) -> bool:
        """Take what a hop has found; tell whether the graph still holds it."""
        try:
            search.take(around)
        except _LEFT_TO_STORE:
            return False
        return not self.checked.is_stale


def shared(store: SimplePropertyGraphStore) -> SharedSearches | None:
    """Return the searches of a recognised store that share steps; None while there are none.

    What the store holds is not looked at before their first hop.
    """
    graph = store.graph
    state = _states.get(graph)
    if state is None or state.index is None or state.views is None:
        return None
    checked, unchecked = state.views
    if checked.is_stale or len(graph.triplets) < MIN_SHARED_TRIPLETS:
        return None
    known = _graphs.get(graph) or _graphs.add(graph, TripletGraph())
    known.show(checked)
    around = _Answers(graph, state.index).around
    return SharedSearches(known, graph, checked, unchecked, around)


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
        state.make(graph)
    if state.index is None:
        return None
    search = getattr(_Answers(graph, state.index), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return search(*args, **kwargs)
        except _LEFT_TO_STORE:
            return ITS_OWN

    return call


ROW = ClassRow(
    "llama_index.core.graph_stores.simple_labelled.SimplePropertyGraphStore",
    "an index of its triplets answers; hops of all requests share steps",
    (f"fewer than {MIN_TRIPLETS} triplets", "a change since its last search", "a replaced method"),
)


def index_obstacle(store: SimplePropertyGraphStore) -> str | None:
    """Return why no index of a recognised store's triplets is made; None where one is."""
    num = len(store.graph.triplets)
    return None if num >= MIN_TRIPLETS else f"small: {num} triplets, of {MIN_TRIPLETS}"


def searches_as_known(cls: type) -> bool:
    """Tell whether stores of a class are ``SimplePropertyGraphStore`` in how they search."""
    if not issubclass(cls, SimplePropertyGraphStore):
        return False
    read = {name: plain_method(SimplePropertyGraphStore, name) for name in _SEARCHES}
    if any(digest_of(getattr(read[name], "__code__", None)) != _READ[name] for name in _SEARCHES):
        return False
    return does_the_same(cls, SimplePropertyGraphStore, (*_SEARCHES, *_ASYNC_SEARCHES))


def searches_unchanged(store: Any) -> bool:
    """Tell whether nothing was put in the place of what a recognised store searches with.

    Looked at in each search: the store's own attributes, its class as its program wrote it, its
    graph's, and LlamaIndex's functions.
    """
    own: Mapping[str, Any] = vars(store)
    cls = plain_class(type(store))
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
        all(is_written_in(simple_labelled, plain_method(cls, name)) for name in _SEARCHES)
        and all(is_written_in(types, plain_method(cls, name)) for name in _ASYNC_SEARCHES)
        and all(
            is_written_in(types, getattr(LabelledPropertyGraph, name)) for name in _GRAPH_METHODS
        )
        and issubclass(cls, PropertyGraphStore)
    )


_EVERY = (
    "_retrieve",
    "_aretrieve",
    "retrieve_from_graph",
    "aretrieve_from_graph",
    "_get_nodes_with_score",
    "_add_source_text",
    "add_source_text",
    "async_add_source_text",
)
_METHODS: dict[type, WrittenMethods] = {
    VectorContextRetriever: WrittenMethods(
        (),
        (
            *_EVERY,
            "_build_vector_store_query",
            "_get_vector_store_query",
            "_aget_vector_store_query",
            "_get_kg_ids",
        ),
    ),
    LLMSynonymRetriever: WrittenMethods(
        (), (*_EVERY, "_parse_llm_output", "_prepare_matches", "_aprepare_matches")
    ),
}


def obstacle_to_sharing(retriever: BasePGRetriever, method: PlainMethod) -> str | None:
    """Return why the hops of a retriever share no steps with others; None where they may.

    Cheap, since each search asks it: how large the store is and what it holds is not looked at.

    Args:
        retriever: the retriever.
        method: returns a class's method as its program wrote it.
    """
    cls = plain_class(type(retriever))
    methods = _METHODS.get(cls)
    if methods is None:
        return f"{full_name(cls)} is not one of LlamaIndex's two that find nodes in the graph"
    if not methods.are_plain(retriever, cls, method):
        return "one of its methods was replaced"
    if getattr(retriever, "_filters", None) is not None:
        return "it filters the nodes that it begins with"
    store: Any = retriever._graph_store
    cls = plain_class(type(store))
    if cls is not SimplePropertyGraphStore:
        return f"its store is a {full_name(cls)}, which is asked itself"
    is_known = searches_as_known(cls) and searches_unchanged(store)
    return None if is_known else "the searches of its store are not those that are known"


def obstacle_of_size(store: SimplePropertyGraphStore) -> str | None:
    """Return why the hops over a recognised store share no steps as it is; None where they may."""
    size, least = len(store.graph.triplets), MIN_SHARED_TRIPLETS
    if size >= least:
        return None
    return f"its store holds {size} triplets, a step is faster from {least} on"
