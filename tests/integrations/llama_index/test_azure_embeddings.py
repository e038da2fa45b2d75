"""Texts of concurrent callers of an ``AzureOpenAIEmbedding`` reach its deployment in few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.azure_openai")

import shared_calls_kit
from aiohttp import web
from embeddings_server import EmbeddingsServer
from llama_index.embeddings.azure_openai import AzureOpenAIEmbedding
from openai_http import httpx
from shared_calls_kit import HostedRecognition, SharedCalls

import llama_index_rag_accel
from llama_index_rag_accel.coverage import coverage
from rag_accel_adapters.llama_index.models import hosted_calls

CLIENTS = ("_client", "_aclient")

plain, opened = shared_calls_kit.plain, shared_calls_kit.opened


class AzureServer(EmbeddingsServer):
    """Answer at the address of a deployment."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer embeddings."""
        router.add_post("/openai/deployments/d/embeddings", self._answer)


@pytest.fixture
def server() -> Iterator[AzureServer]:
    """Yield a loopback server of a deployment."""
    with AzureServer() as made:
        yield made


@pytest.fixture
def make(server: AzureServer, opened: list[Any]) -> Callable[..., AzureOpenAIEmbedding]:
    """Return a maker of embeddings on that server."""

    def made(
        cls: type[AzureOpenAIEmbedding] = AzureOpenAIEmbedding, **fields: Any
    ) -> AzureOpenAIEmbedding:
        url = server.base_url.removesuffix("/v1")
        given = {
            "api_key": "k",
            "azure_endpoint": url,
            "max_retries": 1,
            "embed_batch_size": 32,
            **fields,
        }
        embedding = cls(azure_deployment="d", api_version="2024-02-01", **given)
        if embedding.reuse_client and not embedding.use_azure_ad:
            opened.extend([embedding._get_client(), embedding._get_aclient()])
        return embedding

    return made


class TestSharedCalls(SharedCalls):
    integration, coverage = llama_index_rag_accel, staticmethod(coverage)
    clients = CLIENTS
    trying, tries = {}, 3
    num_passing = 2

    def embed(self, plain: AzureOpenAIEmbedding, text: str) -> list[float]:
        return plain.get_query_embedding(text)

    async def aembed(self, plain: AzureOpenAIEmbedding, text: str) -> list[float]:
        return await plain.aget_query_embedding(text)


class Same(AzureOpenAIEmbedding):
    """A subclass that changes nothing."""


class TestRecognition(HostedRecognition):
    hosted_calls, clients = staticmethod(hosted_calls), CLIENTS
    shared = ({}, {"dimensions": 8}, {"http_client": httpx.Client()})
    refused = (
        ({"cls": Same}, "Same is a class of the program's"),
        ({"azure_ad_token_provider": lambda: "t"}, "azure_ad_token_provider"),
        ({"use_azure_ad": True}, "use_azure_ad may give each caller another token"),
    )
    changes = {
        "async address": lambda one: setattr(one._aclient, "base_url", "http://127.0.0.1:2"),
        "client": lambda one: setattr(one, "_client", object()),
        "method": lambda one: vars(one).update(_get_query_embedding=print),
    }
    settings = (lambda one: one.additional_kwargs.update(user="u"),)
    functions = ((AzureOpenAIEmbedding, "_get_client"),)
