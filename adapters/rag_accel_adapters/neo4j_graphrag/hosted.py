"""Embedders that ask a server of OpenAI's interface, where a call is the same for every caller.

As for LangChain's objects: neo4j-graphrag's own class with nothing replaced, a client that the
openai package made, a key that is a value, no header, transport or option of the user's, and one of
neo4j-graphrag's own handlers of rate limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rag_accel.recognition.embeddings import HostedCalls
from rag_accel.recognition.proxies import replaced
from rag_accel_adapters.libraries.as_shipped import (
    PlainMethod,
    is_class_as_shipped,
    is_object_as_shipped,
    package_of,
)
from rag_accel_adapters.libraries.openai_clients import (
    InOrder,
    ask_unchanged,
    client_values,
    group_of,
)

#: texts in one call, well below what OpenAI's interface takes
_MAX_TEXTS = 100
_CLASSES = frozenset({"AzureOpenAIEmbeddings", "OpenAIEmbeddings"})
#: Handlers that do nothing unless a call has failed.
_HANDLERS = frozenset({"NoOpRateLimitHandler", "RetryRateLimitHandler"})
_FIELDS = frozenset({"_rate_limit_handler", "client", "model", "openai"})


def hosted_calls(obj: Any, cls: type, method: PlainMethod) -> HostedCalls | None:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``; ``None``: borrowed."""
    values = partial(_values, cls, method)
    group = group_of(values, obj)
    if group is None:
        return None
    return HostedCalls(
        group=group,
        max_texts=_MAX_TEXTS,
        # An object of its own, so that another model or client, set later, is not this call's.
        ask=partial(ask_unchanged, values, replaced(obj), group, _ask),
        alone=partial(_alone, obj),
    )


def _values(cls: type, method: PlainMethod, obj: Any) -> tuple[Any, ...] | None:
    """Return everything that decides a call, or ``None`` if a caller might."""
    if not _is_as_shipped(obj, cls, method):
        return None
    client = obj.client
    if type(obj.model) is not str or client.embeddings._client is not client:
        return None
    # One retry is what each caller asks with, if a shared call fails.
    if type(client.max_retries) is not int or client.max_retries < 1:
        return None
    asks = client_values(client.embeddings)
    if asks is None:
        return None
    return id(client), cls.__qualname__, obj.model, asks


def _is_as_shipped(obj: Any, cls: type, method: PlainMethod) -> bool:
    if package_of(cls) != "neo4j_graphrag" or cls.__qualname__ not in _CLASSES:
        return False
    handler = obj._rate_limit_handler
    return (
        vars(obj).keys() <= _FIELDS
        and is_class_as_shipped(cls, method)
        and type(handler).__qualname__ in _HANDLERS
        and is_object_as_shipped(handler)
    )


def _ask(own: Any, texts: list[str]) -> Sequence[list[float]]:
    """Ask the server once; for one text as the class does, which sends no list then."""
    resource = InOrder(own.client.with_options(max_retries=0).embeddings)
    answer = resource.create(input=texts if len(texts) > 1 else texts[0], model=own.model)
    return [found.embedding for found in answer.data]


def _alone(obj: Any) -> Any:
    """Return the object for a caller whose shared call has failed: its client retries once less.

    Only at first: its handler of rate limits may have the class ask again, each time in full.
    """
    return replaced(obj, client=SimpleNamespace(embeddings=_OnceLess(obj.client)))


class _OnceLess:
    """An embeddings resource whose first call tries once less than its client does."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._retries = max(0, client.max_retries - 1)

    def create(self, **kwargs: Any) -> Any:
        client = self._client.with_options(max_retries=self._retries)
        self._retries = self._client.max_retries
        return client.embeddings.create(**kwargs)
