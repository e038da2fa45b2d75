"""Paths of a knowledge graph for a framework's component, found on the graph's engine.

A search is what a ``GraphRetrieval`` stage does, step by step as its caller waits: the entities
that the question means, hop by hop the paths from them, and those nearest by the caller's own
embeddings. Steps of concurrent searches over one graph are shared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast, get_args

from rag_accel.accelerator import Accelerator, RequestIdentity, Work, default_accelerator
from rag_accel.engine_api import (
    MOST_NUMBER,
    Direction,
    Engine,
    ExpandBatch,
    GraphHit,
    PrimitiveKind,
    PruneBatch,
)
from rag_accel.engines.knowledge.engine import KnowledgeEngine
from rag_accel.engines.knowledge.paths import Paths
from rag_accel.errors import ConfigError
from rag_accel.graph.stages.graph_retrieval import LINKS, Link
from rag_accel.interception.identity import identity_for
from rag_accel.interception.leaf_call import inside, is_nested, note_leaf
from rag_accel.leaves.submitted_work import SubmittedWork
from rag_accel.requests.graph_work import link_query
from rag_accel.system.classes import full_name

Vector = Sequence[float]

DIRECTIONS = get_args(Direction)
_NUMBERS = ("top_k", "hops", "seeds", "fan_out", "max_paths")


@dataclass(frozen=True, slots=True)
class GraphSearchOptions:
    """The bounds of one search, as ``RAGraph.add_graph_retrieval`` has them.

    Args:
        top_k: most paths.
        hops: longest path, in edges.
        seeds: most entities to start from.
        link: how they are found: by ``vector``, or by the ``words`` of their names.
        relations: which relations to follow; ``None`` follows all.
        direction: along edges (``out``), against them (``in``) or both ways.
        fan_out: most edges of one entity in one direction.
        max_paths: most paths of each length.
    """

    top_k: int = 10
    hops: int = 2
    seeds: int = 5
    link: Link = "vector"
    relations: tuple[str, ...] | None = None
    direction: Direction = "both"
    fan_out: int = 32
    max_paths: int = 256

    @classmethod
    def of(cls, given: Mapping[str, Any], top_k: str = "top_k") -> GraphSearchOptions:
        """Return the options a caller gave by name; those he left out have their defaults.

        Args:
            given: the options; ``relations`` may be one text.
            top_k: what his framework calls ``top_k``.

        Raises:
            ConfigError: an unknown name, or a value out of range.
        """
        names = {
            top_k if field.name == "top_k" else field.name: field.name for field in fields(cls)
        }
        for name, value in given.items():
            if name not in names:
                raise ConfigError(
                    "an argument that a graph search does not know",
                    where="search",
                    found=f"{name}={value!r}",
                    valid=", ".join(names),
                    hint="each call may also name the entities to start from: keywords=[...]",
                )
            fault = _fault(names[name], value)
            if fault is not None:
                raise ConfigError(
                    "option of a graph search out of range",
                    where=name,
                    found=repr(value),
                    valid=fault,
                )
        values = {names[name]: value for name, value in given.items()}
        relations = values.get("relations")
        if relations is not None:
            values["relations"] = (relations,) if isinstance(relations, str) else tuple(relations)
        return cls(**values)

    @property
    def finds_nothing(self) -> bool:
        """Tell whether no path can be found, whatever the graph holds."""
        return not (self.top_k and self.hops and self.seeds)


@dataclass(frozen=True, slots=True)
class PathEmbedder:
    """The embeddings of a component's framework, each method sync and async.

    Args:
        query: returns the vector of a question, ``[dim]``.
        texts: returns one vector for each text, ``[n, dim]``.
        aquery: does as ``query``.
        atexts: does as ``texts``.
    """

    query: Callable[[str], Vector]
    texts: Callable[[list[str]], Sequence[Vector]]
    aquery: Callable[[str], Awaitable[Vector]]
    atexts: Callable[[list[str]], Awaitable[Sequence[Vector]]]


@dataclass(frozen=True, slots=True)
class GraphSearch:
    """The searches of one component.

    Raises from a search: GraphLinkError for entities that cannot be looked for in this way,
    EngineError for a tenant without a graph, and what the graph or the embeddings raise.

    Args:
        graph: what ``check_graph`` accepts.
        embedder: makes the vectors of questions and of paths.
        holder: the component; the engine lives as long as one that has called it.
        accelerator: schedules the work; None for the current run's, or the process default.
    """

    graph: Any
    embedder: PathEmbedder
    holder: Any
    accelerator: Accelerator | None

    def describe(self, accelerator: Accelerator) -> str:
        """Return which engine runs the searches on an accelerator."""
        engine = accelerator.engine_of(self.graph) or "of its own, made with its first search"
        return (
            f"engine {engine}: paths of a {type(self.graph).__name__}; all that name this graph"
            " share its steps, one call a hop"
        )

    def search(
        self, query: str, options: GraphSearchOptions, keywords: Any = None
    ) -> tuple[GraphHit, ...]:
        """Return the paths nearest to a question, best first.

        Args:
            query: the question.
            options: the bounds.
            keywords: names the entities to start from instead of ``options.link``: a list of
                texts, or a text that separates them by commas or lines.
        """
        identity = self._identity()
        if options.finds_nothing:
            return ()
        with inside(None, identity):  # the embeddings are part of the same run
            vector, paths = self._linked(identity, query, options, keywords)
            for _ in range(options.hops):
                if not len(paths.frontier):
                    break
                paths = self._compute(identity, PrimitiveKind.EXPANDING, _hop(paths, options))
            texts = list(paths.texts())
            if not texts:
                return ()
            batch = PruneBatch(paths, self.embedder.texts(texts), vector, options.top_k)
            return _noted(identity, query, self._compute(identity, PrimitiveKind.PRUNING, batch))

    async def asearch(
        self, query: str, options: GraphSearchOptions, keywords: Any = None
    ) -> tuple[GraphHit, ...]:
        """Do as ``search`` without blocking the loop."""
        identity = self._identity()
        if options.finds_nothing:
            return ()
        with inside(None, identity):
            vector, paths = await self._alinked(identity, query, options, keywords)
            for _ in range(options.hops):
                if not len(paths.frontier):
                    break
                paths = await self._acompute(
                    identity, PrimitiveKind.EXPANDING, _hop(paths, options)
                )
            texts = list(paths.texts())
            if not texts:
                return ()
            vectors = await self.embedder.atexts(texts)
            batch = PruneBatch(paths, vectors, vector, options.top_k)
            found = await self._acompute(identity, PrimitiveKind.PRUNING, batch)
            return _noted(identity, query, found)

    def _linked(
        self, identity: RequestIdentity, query: str, options: GraphSearchOptions, keywords: Any
    ) -> tuple[Vector, Paths]:
        """Return the vector of a question, and the entities it means as paths of no hops."""
        ahead = self._ahead(identity, query, options, keywords, together=False)
        if ahead is None:
            vector = self.embedder.query(query)
            query_work = link_query("vector", vector, options.seeds)
            return vector, self._compute(identity, PrimitiveKind.SEARCHING, query_work)
        try:
            return self.embedder.query(query), cast("Paths", ahead.value(0))
        finally:
            ahead.cancel()

    async def _alinked(
        self, identity: RequestIdentity, query: str, options: GraphSearchOptions, keywords: Any
    ) -> tuple[Vector, Paths]:
        ahead = self._ahead(identity, query, options, keywords, together=True)
        if ahead is None:
            vector = await self.embedder.aquery(query)
            query_work = link_query("vector", vector, options.seeds)
            return vector, await self._acompute(identity, PrimitiveKind.SEARCHING, query_work)
        try:
            return await self.embedder.aquery(query), cast("Paths", await ahead.avalue(0))
        finally:
            ahead.cancel()

    def _ahead(
        self,
        identity: RequestIdentity,
        query: str,
        options: GraphSearchOptions,
        keywords: Any,
        *,
        together: bool,
    ) -> SubmittedWork | None:
        """Submit the search for entities if it needs no vector, to run while one is made."""
        if keywords is not None:
            query_work = link_query("names", keywords, options.seeds)
        elif options.link == "words":
            query_work = link_query("words", query, options.seeds)
        else:
            return None
        work = self._work(identity, PrimitiveKind.SEARCHING, query_work)
        return identity.accelerator.leaves.submit(identity, [work], together=together)

    def _identity(self) -> RequestIdentity:
        identity = identity_for(self.accelerator)
        if not is_nested(self.holder):
            note_leaf(self.holder, (), "owned", "search")
        # Only an engine reads a graph, so that is scheduled even if nothing else is.
        return identity or (self.accelerator or default_accelerator()).anonymous()

    def _compute(self, identity: RequestIdentity, kind: PrimitiveKind, query_work: Any) -> Any:
        return identity.accelerator.leaves.compute(identity, self._work(identity, kind, query_work))

    async def _acompute(
        self, identity: RequestIdentity, kind: PrimitiveKind, query_work: Any
    ) -> Any:
        work = self._work(identity, kind, query_work)
        return await identity.accelerator.leaves.acompute(identity, work)

    def _work(self, identity: RequestIdentity, kind: PrimitiveKind, payload: Any) -> Work:
        # Never shared: an equal search that began before an edit must not answer one after it.
        make = partial(_engine_over, self.graph)
        engine = identity.accelerator.own(self.graph, "graph", make, holder=self.holder)
        return Work(engine, kind, payload)


def check_graph(graph: Any) -> None:
    """Raise ConfigError unless this is a knowledge graph or an engine over some."""
    cls = type(graph)
    # Of the class: a test double answers to any name, and an index has a view, too.
    is_graph = all(hasattr(cls, name) for name in ("as_engine", "view", "close"))
    if isinstance(graph, KnowledgeEngine) or is_graph:
        return
    raise ConfigError(
        "a graph search needs a knowledge graph",
        where="graph",
        found="None" if graph is None else f"{cls.__module__}.{cls.__qualname__}",
        valid="a MemoryGraph, a BoltGraph or a KnowledgeEngine",
        hint="give triples as MemoryGraph(triples), a database as BoltGraph(driver)",
    )


def check_embedding(given: Any, base: type, where: str, valid: str, component: str) -> None:
    """Raise ConfigError unless an argument is an embeddings object of its framework."""
    if not isinstance(given, base):
        raise ConfigError(
            "a graph retriever needs embeddings",
            where=where,
            found="None" if given is None else full_name(type(given)),
            valid=valid,
            hint=f"{component}() embeds on this machine",
        )


def _engine_over(graph: Any) -> Engine:
    return graph.copy() if isinstance(graph, KnowledgeEngine) else graph.as_engine()


def _hop(paths: Paths, options: GraphSearchOptions) -> ExpandBatch:
    bounds = options.relations, options.direction, options.fan_out, options.max_paths
    return ExpandBatch(paths, *bounds)


def _noted(
    identity: RequestIdentity, query: str, found: tuple[GraphHit, ...]
) -> tuple[GraphHit, ...]:
    """Have the run remember what was found, for prompts that are made of it."""
    identity.retrieved.add(_texts, found, (query,))
    if identity.accelerator.takes_hints:
        identity.accelerator.hint(text for _, text in _texts(found))
    return found


def _texts(found: Sequence[GraphHit]) -> Iterator[tuple[str, str]]:
    for hit in found:
        yield hit.document.id, hit.document.text


def _fault(option: str, value: Any) -> str | None:
    """Return what would be valid, if a value is not."""
    if option in _NUMBERS:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_valid = is_number and 0 <= value <= MOST_NUMBER
        return None if is_valid else f"an integer from 0 to {MOST_NUMBER}"
    if option == "relations":
        is_valid = value is None or isinstance(value, str) or _are_texts(value)
        return None if is_valid else "a list of texts, or None for all relations"
    choices = LINKS if option == "link" else DIRECTIONS
    return None if isinstance(value, str) and value in choices else " or ".join(choices)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
