"""Texts, models and extractors from which property graphs are built, and what such a graph is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from li_programs import EchoLLM, HashEmbedding
from li_side_by_side import NUM_CALLS
from llama_index.core import Document, PropertyGraphIndex
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.graph_stores.types import KG_NODES_KEY, KG_RELATIONS_KEY
from llama_index.core.indices.property_graph import (
    SchemaLLMPathExtractor,
    SimpleLLMPathExtractor,
)
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import TextNode

TEXTS = [f"Pump {place} feeds tank {place + 1}." for place in range(NUM_CALLS)]


class GraphLLM(EchoLLM):
    """A model that writes the path which a text tells of, after what a test has it do."""

    seen: list[str] = []
    aduring: Any = None
    as_json: bool = False

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        pump, tank = self._told(prompt)
        self.seen.append(f"{pump}-{tank}")
        answer = self._answer(pump, tank)
        if self.aduring is not None:
            other = await self.aduring(prompt)
            answer = answer if other is None else other
        return CompletionResponse(text=answer)

    def _told(self, prompt: str) -> tuple[str, str]:
        return re.findall(r"Pump (\d+) feeds tank (\d+)", prompt)[-1]

    def _answer(self, pump: str, tank: str) -> str:
        if not self.as_json:
            return f"(pump {pump}, feeds, tank {tank})\n(tank {tank}, holds, water)"
        path = {
            "subject": {"type": "PRODUCT", "name": f"pump {pump}"},
            "relation": {"type": "USED_BY"},
            "object": {"type": "PRODUCT", "name": f"tank {tank}"},
        }
        return json.dumps({"triplets": [path]})


def simple(llm: GraphLLM, **more: Any) -> SimpleLLMPathExtractor:
    """Return an extractor of the paths that a model writes, one a line."""
    return SimpleLLMPathExtractor(llm=llm, **more)


def by_schema(llm: GraphLLM, **more: Any) -> SchemaLLMPathExtractor:
    """Return an extractor of the paths that a model writes by a schema."""
    llm.as_json = True
    return SchemaLLMPathExtractor(llm=llm, **more)


EXTRACTORS: dict[str, Callable[..., Any]] = {"simple": simple, "schema": by_schema}


def model(aduring: Any = None) -> GraphLLM:
    """Return a model that does something during each call."""
    return GraphLLM(seen=[], aduring=aduring)


def text_nodes(texts: list[str] = TEXTS) -> list[TextNode]:
    """Return nodes with metadata of their own."""
    return [
        TextNode(text=text, id_=f"n{place}", metadata={"page": place})
        for place, text in enumerate(texts)
    ]


def built_of(nodes: Any) -> Any:
    """Return what an extractor has put into nodes, in order."""
    return [
        (
            node.id_,
            list(node.metadata),
            [one.model_dump() for one in node.metadata[KG_NODES_KEY]],
            [one.model_dump() for one in node.metadata[KG_RELATIONS_KEY]],
        )
        for node in nodes
    ]


def documents() -> list[Document]:
    """Return the texts as documents."""
    return [
        Document(text=text, id_=f"d{place}", metadata={"page": place})
        for place, text in enumerate(TEXTS)
    ]


def built(extractor: Any, embedding: Any = None, **more: Any) -> PropertyGraphIndex:
    """Return an index of the documents in LlamaIndex's default stores."""
    return PropertyGraphIndex.from_documents(
        documents(), **_parts(extractor, embedding or HashEmbedding()), **more
    )


def _parts(extractor: Any, embedding: Any) -> dict[str, Any]:
    return {
        "llm": extractor.llm,
        "kg_extractors": [extractor],
        "embed_model": embedding,
        "transformations": [_whole],
    }


def _whole(nodes: Any, **_: Any) -> Any:
    """Return each document as one node of the same id, which upstream would draw at random."""
    return [
        TextNode(text=node.text, id_=f"n-{node.id_}", metadata=dict(node.metadata))
        for node in nodes
    ]


def graph_in(index: PropertyGraphIndex) -> Any:
    """Return the nodes, relations, triplets and vectors of an index, nodes in the order kept."""
    graph: Any = index.property_graph_store.graph  # type: ignore[attr-defined]
    store = index.vector_store
    return (
        [(key, type(one), one.model_dump()) for key, one in graph.nodes.items()],
        [(key, one.model_dump()) for key, one in graph.relations.items()],
        graph.triplets,
        None if store is None else store.to_dict(),  # type: ignore[attr-defined]
    )
