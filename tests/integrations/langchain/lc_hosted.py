"""OpenAI embeddings of LangChain on a loopback server, for tests of shared calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from embeddings_server import EmbeddingsServer
from langchain_openai import OpenAIEmbeddings
from shared_calls_kit import PATIENCE_S

Make = Callable[..., OpenAIEmbeddings]


@pytest.fixture
def make(server: EmbeddingsServer, opened: list[Any]) -> Make:
    """Return a maker of embeddings on that server, whose clients LangChain makes."""

    def made(cls: type[OpenAIEmbeddings] = OpenAIEmbeddings, **fields: Any) -> OpenAIEmbeddings:
        given = {"api_key": "k", "timeout": PATIENCE_S, **fields}
        embeddings = cls(
            model="m",
            base_url=server.base_url,
            check_embedding_ctx_length=False,  # its tokenizer would be fetched
            **given,
        )
        opened.extend([embeddings.client._client, embeddings.async_client._client])
        return embeddings

    return made
