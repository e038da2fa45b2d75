"""Embeddings on a server, recognised where a call is the same whichever caller makes it.

Calls of several callers are joined only then: LangChain's own class with nothing replaced, clients
that it or the openai package made, a key that is a value, and no client, hook, header, transport or
option that could look at who calls. What counts is looked at in every call, since a tracer or a
gateway may come at any time. Anything unknown leaves the object borrowed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rag_accel.recognition.embeddings import HostedCalls
from rag_accel_adapters.libraries.as_shipped import PlainMethod, is_class_as_shipped, package_of
from rag_accel_adapters.libraries.openai_clients import (
    InOrder,
    ask_unchanged,
    client_values,
    group_of,
    is_value,
)


def hosted_calls(obj: Any, cls: type, method: PlainMethod) -> HostedCalls | None:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``; ``None``: borrowed."""
    values = partial(_values, cls, method)
    group = group_of(values, obj)
    if group is None:
        return None
    ask = partial(_ask, method(cls, "embed_documents"))
    return HostedCalls(
        group=group,
        max_texts=obj.chunk_size,
        ask=partial(ask_unchanged, values, _copied(obj), group, ask),
        alone=partial(_alone, obj),
    )


def _values(cls: type, method: PlainMethod, obj: Any) -> tuple[Any, ...] | None:
    """Return everything that decides a call, or ``None`` if a caller might."""
    if not (_is_known(cls) and is_class_as_shipped(cls, method)):
        return None
    fields = vars(obj)
    if not fields.keys() <= cls.model_fields.keys() or any(  # type: ignore[attr-defined]
        fields.get(name) for name in _USERS
    ):
        return None
    if isinstance(obj.chunk_size, bool) or not isinstance(obj.chunk_size, int):
        return None
    # One retry is what each caller asks with, if a shared call fails.
    if obj.chunk_size < 2 or obj.client._client.max_retries < 1 or callable(obj.openai_api_key):
        return None
    settings = [(name, fields[name]) for name in sorted(fields.keys() - _KEPT_ELSEWHERE)]
    if not all(is_value(value) for _, value in settings):
        return None
    asks, asks_async = client_values(obj.client), client_values(obj.async_client)
    if asks is None or asks != asks_async:  # async callers use the sync client too
        return None
    return id(obj.client), id(obj.client._client), cls.__qualname__, settings, asks


#: Settings that may act for a caller, or carry what differs between callers.
_USERS = frozenset(
    {
        "azure_ad_async_token_provider",
        "azure_ad_token",
        "azure_ad_token_provider",
        "default_headers",
        "default_query",
        "headers",
        "http_async_client",
        "http_client",
        "http_socket_options",
        "openai_proxy",
    }
)
#: Compared as the clients hold it, since that is what they send.
_KEPT_ELSEWHERE = frozenset({"async_client", "client", "openai_api_key"})


def _is_known(cls: type) -> bool:
    return package_of(cls) == "langchain_openai" and cls.__qualname__ in {
        "AzureOpenAIEmbeddings",
        "OpenAIEmbeddings",
    }


def _copied(obj: Any) -> Any:
    """Return the object with settings of its own, so that a later change is not this call's."""
    copied = obj.model_copy()
    if copied.model_kwargs:
        copied.model_kwargs = copy.deepcopy(copied.model_kwargs)
    return copied


def _ask(
    embed_documents: Callable[..., Sequence[Any]], own: Any, texts: list[str]
) -> Sequence[Any]:
    """Ask the server once, by LangChain's own method on a copy of the object."""
    asking = own.model_copy()
    asking.client = InOrder(own.client._client.with_options(max_retries=0).embeddings)
    return embed_documents(asking, texts)


def _alone(obj: Any) -> Any:
    alone = _copied(obj)
    retries = max(0, obj.client._client.max_retries - 1)
    alone.client = obj.client._client.with_options(max_retries=retries).embeddings
    alone.async_client = obj.async_client._client.with_options(max_retries=retries).embeddings
    return alone
