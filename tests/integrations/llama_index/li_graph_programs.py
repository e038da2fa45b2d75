"""Programs that retrieve from a property graph: each sub-retriever, and what an index makes.

All of them work over one store object, of which a plain and an accelerated program give the same:
``SimplePropertyGraphStore`` lists what a set yields.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from li_more_programs import Evidence, evidence
from li_programs import EchoLLM, HashEmbedding, nodes_of, run_in_loop, text_of
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import (
    TRIPLET_SOURCE_KEY,
    VECTOR_SOURCE_KEY,
    EntityNode,
    PropertyGraphStore,
    Relation,
)
from llama_index.core.indices.property_graph import (
    CustomPGRetriever,
    CypherTemplateRetriever,
    ImplicitPathExtractor,
    LLMSynonymRetriever,
    PGRetriever,
    PropertyGraphIndex,
    TextToCypherRetriever,
    VectorContextRetriever,
)
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery

QUESTION = "What does E1 lead to?"
NUM_NODES, NUM_RELATIONS = 40, 120
CYPHER = (
    "MATCH (e:__Entity__ {id: 'E1'})-[r]->(t) RETURN t.id AS name, type(r) AS how ORDER BY name"
)
TEMPLATE = (
    "MATCH (e:__Entity__)-[r]->(t) WHERE e.id IN $names "
    "RETURN e.id AS head, type(r) AS how, t.id AS tail ORDER BY head, how, tail"
)


class GraphLLM(EchoLLM):
    """A model that knows names and queries of the graph."""

    cypher: str = CYPHER
    words: str = "e1^E7^Unknown^E3"

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.calls += 1
        if "synonyms" in prompt:
            return CompletionResponse(text=self.words)
        if "Cypher statement" in prompt:
            return CompletionResponse(text=self.cypher)
        if "JSON" in prompt:
            return CompletionResponse(text=json.dumps({"names": ["E1", "E3"]}))
        return super().complete(prompt, formatted, **kwargs)


class Names(BaseModel):
    """Parameters of the query that the template holds."""

    names: list[str]


class AskedGraph(SimplePropertyGraphStore):
    """A store of the user's that knows vectors, and answers a query by the triplets of a name."""

    supports_structured_queries = True
    supports_vector_queries = True

    def get_schema(self, refresh: bool = False) -> str:
        """Return a text."""
        return "(:__Entity__)-[r0|r1]->(:__Entity__)"

    def structured_query(self, query: str, param_map: dict[str, Any] | None = None) -> Any:
        """Return rows of the names that the query is given, or that stand in it."""
        if not query.startswith("MATCH"):
            raise ValueError(f"no query: {query}")
        names = (param_map or {}).get("names") or ["E1"]
        triplets = self.get_triplets(ids=names)
        return [{"head": one[0].id, "how": one[1].id, "tail": one[2].id} for one in triplets]

    def vector_query(self, query: VectorStoreQuery, **kwargs: Any) -> Any:
        """Return the first nodes, scored by their place."""
        nodes = [one for one in self.graph.nodes.values() if type(one) is EntityNode]
        chosen = nodes[: query.similarity_top_k]
        return chosen, [1.0 / (place + 1) for place, _ in enumerate(chosen)]


class AroundName(CustomPGRetriever):
    """Finds what is around nodes that the question names, also on a loop."""

    def init(self, **kwargs: Any) -> None:
        """Need nothing."""

    def custom_retrieve(self, query_str: str) -> list[NodeWithScore]:
        """Return the triplets as nodes."""
        found = self.graph_store.get_rel_map(self.graph_store.get(ids=["E1"]), depth=2)
        return [self._shown(one, place) for place, one in enumerate(found)]

    async def acustom_retrieve(self, query_str: str) -> Any:
        """Return the same."""
        nodes = await self.graph_store.aget(ids=["E1"])
        found = await self.graph_store.aget_rel_map(nodes, depth=2)
        return [self._shown(one, place) for place, one in enumerate(found)]

    @staticmethod
    def _shown(triplet: Any, place: int) -> NodeWithScore:
        text = " ".join(one.id for one in triplet)
        return NodeWithScore(node=TextNode(text=text), score=1.0 / (place + 1))


class BlockingAround(AroundName):
    """The same without an async form of its own."""

    acustom_retrieve = CustomPGRetriever.acustom_retrieve


class Texts(AroundName):
    """Finds texts alone."""

    def custom_retrieve(self, query_str: str) -> Any:
        """Return a text twice, which the retriever around gives once."""
        return [query_str, "a text", "a text"]

    async def acustom_retrieve(self, query_str: str) -> Any:
        """Return the same."""
        return self.custom_retrieve(query_str)


def filled(store: PropertyGraphStore, seed: int = 3) -> Any:
    """Put chunks, entities with one as their source, and relations with properties into a store."""
    rng = Random(seed)
    chunks = [TextNode(text=f"Chunk {at} tells of it.", id_=f"c{at}") for at in range(5)]
    store.upsert_llama_nodes(chunks)  # type: ignore[arg-type]
    embedding = HashEmbedding()
    store.upsert_nodes(
        [
            EntityNode(
                name=f"E{at}",
                label=("place", "thing")[at % 2],
                properties={TRIPLET_SOURCE_KEY: f"c{at % 5}", "at": at} if at % 3 else {"at": at},
                embedding=embedding.get_text_embedding(f"E{at}"),
            )
            for at in range(NUM_NODES)
        ]
    )
    store.upsert_relations(
        [
            Relation(
                label=f"r{rng.randrange(4)}",
                source_id=f"E{min(int(rng.paretovariate(0.6)), NUM_NODES - 1)}",
                target_id=f"E{rng.randrange(NUM_NODES)}",
                properties={"weight": place / 8},
            )
            for place in range(NUM_RELATIONS)
        ]
    )
    return store


def vectors(embedding: HashEmbedding) -> SimpleVectorStore:
    """Return a vector store of the names of entities."""
    names = [f"E{at}" for at in range(NUM_NODES)]
    store = SimpleVectorStore()
    store.add(
        [
            TextNode(
                text=name,
                id_=name,
                metadata={VECTOR_SOURCE_KEY: name},
                embedding=embedding.get_text_embedding(name),
            )
            for name in names
        ]
    )
    return store


@dataclass(frozen=True, slots=True)
class GraphParts:
    """A store, and the leaves of programs over it."""

    store: Any
    llm: GraphLLM = field(default_factory=GraphLLM)
    embedding: HashEmbedding = field(default_factory=HashEmbedding)

    @property
    def beside(self) -> SimpleVectorStore | None:
        """Return the vector store of a graph store that knows no vectors."""
        return None if self.store.supports_vector_queries else vectors(self.embedding)


Sub = Callable[[GraphParts, bool], Any]


def _synonyms(parts: GraphParts, text: bool) -> Any:
    return LLMSynonymRetriever(parts.store, include_text=text, llm=parts.llm, path_depth=2)


def _context(parts: GraphParts, text: bool) -> Any:
    return VectorContextRetriever(
        parts.store,
        include_text=text,
        embed_model=parts.embedding,
        vector_store=parts.beside,
        path_depth=2,
        limit=50,
    )


def _context_with_properties(parts: GraphParts, text: bool) -> Any:
    return VectorContextRetriever(
        parts.store,
        include_text=text,
        include_properties=True,
        embed_model=parts.embedding,
        vector_store=parts.beside,
        similarity_top_k=7,
        similarity_score=0.2,
    )


def _template(parts: GraphParts, text: bool) -> Any:
    return CypherTemplateRetriever(parts.store, Names, TEMPLATE, llm=parts.llm, include_text=text)


def _text_to_cypher(parts: GraphParts, text: bool) -> Any:
    return TextToCypherRetriever(
        parts.store,
        llm=parts.llm,
        include_raw_response_as_metadata=not text,
        summarize_response=text,
    )


def _custom(cls: Any) -> Sub:
    return lambda parts, text: cls(parts.store, include_text=text)


#: for every store
SUB_RETRIEVERS: dict[str, Sub] = {
    "synonyms": _synonyms,
    "context": _context,
    "context with properties": _context_with_properties,
    "custom": _custom(AroundName),
    "custom without async": _custom(BlockingAround),
    "texts": _custom(Texts),
}
#: for stores that know queries
ASKING: dict[str, Sub] = {"template": _template, "text to Cypher": _text_to_cypher}


def retriever(parts: GraphParts, *names: str, text: bool = False, **options: Any) -> PGRetriever:
    """Return a retriever over sub-retrievers of these names."""
    known = SUB_RETRIEVERS | ASKING
    return PGRetriever([known[name](parts, text) for name in names], **options)


def index(parts: GraphParts) -> PropertyGraphIndex:
    """Return an index over a store that is filled."""
    return PropertyGraphIndex.from_existing(
        property_graph_store=parts.store,
        vector_store=parts.beside,
        llm=parts.llm,
        kg_extractors=[ImplicitPathExtractor()],
        embed_model=parts.embedding,
    )


def found(nodes: list[NodeWithScore]) -> list[Any]:
    """Return all that nodes show but the ids of those that were made for this call."""
    return [
        (
            type(one.node),
            one.node.id_ if one.node.id_.startswith("c") and len(one.node.id_) == 2 else None,
            one.node.model_dump(exclude={"id_"}),
            type(one.score),
            one.score,
        )
        for one in nodes
    ]


def retrieve(program: Any, question: str = QUESTION) -> list[Any]:
    """Return what a retriever finds."""
    return found(program.retrieve(question))


async def aretrieve(program: Any, question: str = QUESTION) -> list[Any]:
    """Return what its async form finds."""
    return found(await program.aretrieve(question))


def ask(engine: Any) -> Any:
    """Return the answer, its type, texts and scores of its sources, and the sources."""
    response = engine.query(QUESTION)
    return text_of(response), type(response), nodes_of(response), found(response.source_nodes)


async def aask(engine: Any) -> Any:
    """Return what the async form gives."""
    response = await engine.aquery(QUESTION)
    return text_of(response), type(response), nodes_of(response), found(response.source_nodes)


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """A program over a store, and a use of it, which may be a coroutine."""

    make: Callable[[GraphParts], Any]
    use: Callable[[Any], Any]

    def run(self, program: Any) -> Any:
        """Return what its use gives."""
        given = self.use(program)
        return run_in_loop(given) if asyncio.iscoroutine(given) else given

    def evidence(self, program: Any) -> Evidence:
        """Return what its use shows."""
        return evidence(lambda: self.run(program))


def _sub(name: str, text: bool, **options: Any) -> Callable[[GraphParts], Any]:
    return lambda parts: retriever(parts, name, text=text, **options)


def programs(asking: bool) -> dict[str, GraphProgram]:
    """Return the programs by name; with those that need a store that knows queries."""
    names = [*SUB_RETRIEVERS, *(ASKING if asking else ())]
    made = dict[str, GraphProgram]()
    for name in names:
        for text in (False, True):
            shown = f"{name}, {'text' if text else 'triplets'}"
            made[shown] = GraphProgram(_sub(name, text), retrieve)
            made[f"{shown}, async"] = GraphProgram(_sub(name, text), aretrieve)
        made[f"{name}, in order"] = GraphProgram(_sub(name, False, use_async=False), retrieve)
        made[f"{name} alone, async"] = GraphProgram(
            lambda parts, name=name: (SUB_RETRIEVERS | ASKING)[name](parts, True), aretrieve
        )
    for workers in (1, 4):
        several = GraphProgram(
            lambda parts, workers=workers: retriever(parts, *names, num_workers=workers), aretrieve
        )
        made[f"all by {workers}, async"] = several
    made["all"] = GraphProgram(lambda parts: retriever(parts, *names, text=True), retrieve)
    for text in (False, True):
        shown = f"engine, {'text' if text else 'triplets'}"
        made[shown] = GraphProgram(lambda parts, text=text: _engine(parts, text), ask)
        made[f"{shown}, async"] = GraphProgram(lambda parts, text=text: _engine(parts, text), aask)
        made[f"index, {shown}"] = GraphProgram(
            lambda parts, text=text: index(parts).as_retriever(include_text=text), aretrieve
        )
    return made


def _engine(parts: GraphParts, text: bool) -> Any:
    return index(parts).as_query_engine(llm=parts.llm, include_text=text)
