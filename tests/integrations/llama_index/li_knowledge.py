"""A graph of triples, an embedding that counts words, and the stage that a retriever must equal."""

from __future__ import annotations

import asyncio
from typing import Any

from graph_facts import embed
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeWithScore
from pydantic import PrivateAttr


class WordEmbedding(BaseEmbedding):
    """An embedding that counts words; awaited queries wait for ``opened``."""

    _opened: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _queries: list[str] = PrivateAttr(default_factory=list)

    def __init__(self, *, is_open: bool = True, **arguments: Any) -> None:
        super().__init__(**arguments)
        if is_open:
            self._opened.set()

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed([text])[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        self._queries.append(query)
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector = self._get_query_embedding(query)
        await self._opened.wait()
        return vector


def assert_equal(found: list[NodeWithScore], hits: list[Any]) -> None:
    """Check that nodes are those of a stage: texts, order, paths and scores."""
    assert [one.text for one in found] == [hit.document.text for hit in hits]
    for one, hit in zip(found, hits, strict=True):
        assert one.node_id == hit.document.id
        assert one.metadata == {
            "entities": list(hit.path.entities),
            "relations": list(hit.path.relations),
            "forward": list(hit.path.forward),
        }
        assert one.score is not None
        assert abs(one.score - hit.score) <= 1e-6
