"""Models recognised inside the embedders of neo4j-graphrag, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its model
embeds as sentence-transformers wrote it, or its client asks its server as the openai package wrote
it; everything else stays borrowed and runs where its caller is.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from rag_accel.adoption.embeddings import (
    LOCAL_MODEL,
    LOCAL_UNLESS,
    AdoptedEmbeddings,
    EmbeddingsClass,
    HostedCalls,
    KnownEmbeddings,
    adopt_plain_model,
    server_class,
)
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import replaced
from rag_accel.engines.embedding.hosted_engine import ServerAnswer
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.as_shipped import (
    WrittenMethods,
    check_class,
    check_object,
    package_of,
)
from rag_accel_adapters.libraries.openai_clients import (
    ask_unchanged,
    asked_once,
    group_of,
    number_of_http,
    values_of_client,
)
from rag_accel_adapters.libraries.openai_limited import LimitedClient

#: texts in one call, well below what OpenAI's interface takes
_MAX_TEXTS = 100
_CLASSES = frozenset({"AzureOpenAIEmbeddings", "OpenAIEmbeddings"})
#: Handlers that do nothing unless a call has failed.
_HANDLERS = frozenset({"NoOpRateLimitHandler", "RetryRateLimitHandler"})
_FIELDS = frozenset({"_rate_limit_handler", "client", "model", "openai"})

#: The methods by which its objects embed.
LEAVES = ("embed_query", "async_embed_query")


def hosted_calls(obj: Any, cls: type) -> HostedCalls:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``.

    Raises:
        NotAdoptedError: a caller might decide a call.
    """
    values = partial(_values, cls)
    group = group_of(values, obj)
    return HostedCalls(
        group=group,
        max_texts=_MAX_TEXTS,
        # An object of its own, so that another model or client, set later, is not this call's.
        ask=partial(ask_unchanged, values, replaced(obj), group, _ask),
        alone=partial(_alone, obj),
        attempts=obj.client.max_retries + 1,
        blocks_loops=True,
    )


def _values(cls: type, obj: Any) -> tuple[Any, ...]:
    """Return everything that decides a call.

    Raises:
        NotAdoptedError: a caller might.
    """
    _check_class(obj, cls)
    client = obj.client
    if type(obj.model) is not str:
        raise NotAdoptedError("model is no text", "a text")
    return number_of_http(client), cls.__qualname__, obj.model, values_of_client(client)


def _check_class(obj: Any, cls: type) -> None:
    if package_of(cls) != "neo4j_graphrag" or cls.__qualname__ not in _CLASSES:
        raise NotAdoptedError(f"{cls.__qualname__} is a class of the program's", "its base class")
    if more := vars(obj).keys() - _FIELDS:
        raise NotAdoptedError(f"{min(more)} is set on the object")
    check_class(cls, LEAVES)
    handler = obj._rate_limit_handler
    if type(handler).__qualname__ not in _HANDLERS:
        raise NotAdoptedError(
            f"rate_limit_handler is a {full_name(type(handler))}", "one of neo4j-graphrag's"
        )
    check_object(handler, "rate_limit_handler")


def _ask(own: Any, texts: list[str], gate: EndpointGate | None) -> ServerAnswer:
    """Ask the server once; for one text as the class does, which sends no list then."""
    resource = asked_once(own.client, gate)
    answer = resource.create(input=texts if len(texts) > 1 else texts[0], model=own.model)
    return ServerAnswer([found.embedding for found in answer.data], resource.model)


def limited(obj: Any, gate: EndpointGate) -> Any:
    """Return embeddings of the openai package as they send by a gate."""
    client = obj.client
    return replaced(obj, client=LimitedClient(lambda: client, gate))


def _alone(obj: Any, attempts: int) -> Any:
    """Return the object for a caller whose shared call has failed: its client makes the rest.

    Only at first: its handler of rate limits may have the class ask again, each time in full.
    """
    return replaced(obj, client=SimpleNamespace(embeddings=_FewerRetries(obj.client, attempts)))


class _FewerRetries:
    """An embeddings resource whose first call makes the attempts that are left."""

    def __init__(self, client: Any, attempts: int) -> None:
        self._client = client
        self._retries = max(0, client.max_retries - attempts)

    def create(self, **kwargs: Any) -> Any:
        client = self._client.with_options(max_retries=self._retries)
        self._retries = self._client.max_retries
        return client.embeddings.create(**kwargs)


_WRITTEN = WrittenMethods(LEAVES)


def _sentence_transformer(obj: Any, cls: type) -> AdoptedEmbeddings:
    _WRITTEN.check(obj, cls)
    return adopt_plain_model(obj.model, {}, {})


_OPENAI = server_class(hosted_calls, limited)
EMBEDDERS = KnownEmbeddings(
    {
        "neo4j_graphrag.embeddings.openai.AzureOpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.openai.OpenAIEmbeddings": _OPENAI,
        "neo4j_graphrag.embeddings.sentence_transformers.SentenceTransformerEmbeddings": (
            EmbeddingsClass(_sentence_transformer, LOCAL_MODEL, LOCAL_UNLESS)
        ),
    },
    LEAVES,
)
