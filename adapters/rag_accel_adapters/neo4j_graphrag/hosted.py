"""Embedders that ask a server of OpenAI's interface, where a call is the same for every caller.

As for LangChain's objects: neo4j-graphrag's own class with nothing replaced, a client that the
openai package made, a key that is a value, no header, transport or option of the user's, and one of
neo4j-graphrag's own handlers of rate limits. What counts is looked at in every call. Anything
unknown leaves the object borrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
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
    changed_since,
    client_values,
    may_log_what_is_sent,
)

#: texts in one call, well below what OpenAI's interface takes
_MAX_TEXTS = 100
_CLASSES = frozenset({"AzureOpenAIEmbeddings", "OpenAIEmbeddings"})
#: Handlers that do nothing unless a call has failed.
_HANDLERS = frozenset({"NoOpRateLimitHandler", "RetryRateLimitHandler"})
_FIELDS = frozenset({"_rate_limit_handler", "client", "model", "openai"})


def hosted_calls(obj: Any, cls: type, method: PlainMethod) -> HostedCalls | None:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``; ``None``: borrowed."""
    try:
        values = _values(obj, cls, method)
    except (AttributeError, TypeError):  # a version whose insides are others
        return None
    if values is None:
        return None
    # An object of its own, so that another model or client, set later, is not this call's.
    own = replaced(obj)
    return HostedCalls(
        group=values,
        max_texts=_MAX_TEXTS,
        ask=partial(_ask, own, values, cls, method),
        alone=partial(_alone, obj),
    )


def _values(obj: Any, cls: type, method: PlainMethod) -> str | None:
    """Return a digest of everything that decides a call, or ``None`` if a caller might."""
    if may_log_what_is_sent() or not _is_as_shipped(obj, cls, method):
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
    text = repr((id(client), cls.__qualname__, obj.model, asks))
    return sha256(text.encode()).hexdigest()  # it holds the key


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


def _ask(
    own: Any, values: str, cls: type, method: PlainMethod, texts: list[str]
) -> Sequence[list[float]]:
    """Ask the server once; for one text as the class does, which sends no list then."""
    if _values(own, cls, method) != values:
        raise changed_since()
    resource = InOrder(own.client.with_options(max_retries=0).embeddings)
    answer = resource.create(input=texts if len(texts) > 1 else texts[0], model=own.model)
    return [one.embedding for one in answer.data]


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
