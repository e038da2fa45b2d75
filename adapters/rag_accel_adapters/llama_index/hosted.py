"""Embeddings on a server, recognised where a call is the same whichever caller makes it.

As for LangChain's objects: LlamaIndex's own class with nothing replaced, the clients that it makes
itself, a key that is a value, and no client, header or option of the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rag_accel.recognition.embeddings import HostedCalls
from rag_accel.recognition.proxies import replaced
from rag_accel_adapters.libraries.as_shipped import (
    PlainMethod,
    is_class_as_shipped,
    is_function_as_shipped,
)
from rag_accel_adapters.libraries.openai_clients import (
    InOrder,
    ask_unchanged,
    client_values,
    group_of,
    is_value,
)

#: functions of the class's module by which it asks
_ASKING = ("get_embedding", "get_embeddings", "aget_embedding", "aget_embeddings")


def hosted_calls(obj: Any, cls: type, method: PlainMethod) -> HostedCalls | None:
    """Return how to ask for an ``OpenAIEmbedding`` of plain class ``cls``; ``None``: borrowed."""
    values = partial(_values, cls, method)
    group = group_of(values, obj)
    if group is None:
        return None
    # With settings of its own, so that a later change is not this call's.
    own = replaced(obj, additional_kwargs=copy.deepcopy(obj.additional_kwargs))
    ask = partial(ask_unchanged, values, own, group)
    return HostedCalls(
        group=group,
        max_texts=obj.embed_batch_size,
        ask=partial(ask, partial(_ask, obj._text_engine)),
        ask_queries=partial(ask, partial(_ask, obj._query_engine)),
        alone=partial(_alone, obj),
    )


def _values(cls: type, method: PlainMethod, obj: Any) -> tuple[Any, ...] | None:
    """Return everything that decides a call, or ``None`` if a caller might."""
    if not _is_as_shipped(cls, method):
        return None
    private = obj.__pydantic_private__
    if not vars(obj).keys() <= cls.model_fields.keys() or _has_more(private):  # type: ignore[attr-defined]
        return None
    if not _is_as_usual(obj):
        return None
    client, other = obj._get_client(), private["_aclient"]
    asks = _asks(client)
    if asks is None or (other is not None and _asks(other) != asks):
        return None  # async callers use the sync client too
    engines = (obj._query_engine, obj._text_engine)
    settings = (obj.additional_kwargs, obj.embed_batch_size)
    return id(client), cls.__qualname__, engines, settings, asks


def _is_as_shipped(cls: type, method: PlainMethod) -> bool:
    from llama_index.embeddings.openai import OpenAIEmbedding, base

    if cls is not OpenAIEmbedding or not is_class_as_shipped(cls, method):
        return False
    its = vars(base)
    return all(is_function_as_shipped(its.get(name)) for name in _ASKING)


def _has_more(private: dict[str, Any]) -> bool:
    """Tell whether an HTTP client of the user's sends, or more is there than the class knows of."""
    names = {"_aclient", "_async_http_client", "_client", "_http_client"}
    if not private.keys() <= names | {"_query_engine", "_text_engine"}:
        return True
    return private["_http_client"] is not None or private["_async_http_client"] is not None


def _is_as_usual(obj: Any) -> bool:
    """Tell whether its settings are data, and let it ask for several texts and ask again."""
    if not obj.reuse_client or obj.default_headers or type(obj.api_key) is not str:
        return False
    counts = (obj.embed_batch_size, obj.max_retries)
    if any(type(count) is not int for count in counts):
        return False
    kwargs = obj.additional_kwargs
    if type(kwargs) is not dict or not is_value(kwargs) or "encoding_format" in kwargs:
        return False
    engines = (obj._query_engine, obj._text_engine)
    # One retry is what each caller asks with, if a shared call fails.
    return obj.embed_batch_size > 1 and obj.max_retries > 0 and all(map(is_value, engines))


def _asks(client: Any) -> str | None:
    """Return what a client sends with; ``None`` if a caller might decide it."""
    resource = client.embeddings
    if resource._client is not client or client.max_retries < 1:
        return None
    return client_values(resource)


def _ask(engine: str, own: Any, texts: list[str]) -> Sequence[Any]:
    """Ask the server once, by LlamaIndex's own function."""
    from llama_index.embeddings.openai import base

    resource = InOrder(own._get_client().with_options(max_retries=0).embeddings)
    client: Any = SimpleNamespace(embeddings=resource)
    return base.get_embeddings(client, texts, engine=engine, **own.additional_kwargs)


def _alone(obj: Any) -> Any:
    """Return the object for a caller whose shared call has failed: its clients retry once less."""
    client, other = obj._get_client(), obj._get_aclient()
    retries = max(0, client.max_retries - 1)
    return replaced(
        obj,
        _client=client.with_options(max_retries=retries),
        _aclient=other.with_options(max_retries=retries),
    )
