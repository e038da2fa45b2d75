"""Rerankers whose clients send a query and its texts in one HTTP call, and never again.

Equal calls in flight are one only where nothing of an object's can look at who calls, as for
embeddings. The first caller asks where it is. Each caller's own method reads the answer, which is
the server's: documents, scores, events and errors are those of that caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rag_accel.recognition.known_classes import NotAdoptedError, PlainMethod, full_name
from rag_accel.recognition.proxies import HOSTED_RERANKER, OWN_METHODS, Ask, ProxyClass
from rag_accel_adapters.libraries.as_shipped import check_class, check_object
from rag_accel_adapters.libraries.http_embeddings import (
    TEI,
    Protocol,
    check_attributes,
    check_httpx,
    check_own,
)
from rag_accel_adapters.libraries.openai_clients import (
    check_value,
    digest_of,
    is_value,
    number_of,
)

_UNLESS = (
    "a token that a function gives",
    "hooks, an auth or adapters of the program's in a session",
    "a method that neither the library nor a known tracer wrote",
    "`single_flight=False` and `endpoint_limits=False`, for one effect each",
)


@dataclass(frozen=True, slots=True)
class HttpReranker:
    """A class of rerankers that send by a protocol.

    Args:
        name: its full name.
        leaves: the methods by which its objects rerank.
        protocol: how they send.
        sent: settings that decide a call beside its arguments.
        ranks: tells whether an answer, given the arguments by which it was asked for, ranks all
            their texts or some; errors do not.
    """

    name: str
    leaves: tuple[str, ...]
    protocol: Protocol
    sent: tuple[str, ...]
    ranks: Callable[..., bool]

    def row(self) -> ProxyClass:
        """Return the class as one whose objects can have proxies."""
        return ProxyClass(
            self.leaves,
            lambda obj: None,
            self._proxy,
            "reranker on a server",
            OWN_METHODS,
            _UNLESS,
            effects=HOSTED_RERANKER,
            check=self._check,
        )

    def _check(self, obj: Any, cls: type, method: PlainMethod) -> None:
        check_own(cls, self.name)
        check_class(cls, method, self.leaves)
        check_attributes(obj, cls)
        digest_of(self._values, obj)

    def _values(self, obj: Any) -> tuple[Any, ...]:
        settings = [(name, getattr(obj, name)) for name in self.sent]
        for name, value in settings:
            check_value(value, name)
        return self.name, settings, self.protocol.values(obj)

    def _proxy(self, obj: Any, ask: Ask) -> Any:
        gate = ask.gate()
        try:
            group = digest_of(self._values, obj)
        except NotAdoptedError:  # since it was checked
            return obj
        limited = obj if gate is None else self.protocol.limited(obj, gate)
        # Nobody waits for a call that is less urgent.
        key = (group, None if gate is None else gate.urgency())
        return self.protocol.sending(limited, partial(self._sharing, ask, key))

    def _sharing(
        self, ask: Ask, key: tuple[Any, ...], send: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            send_once = partial(send, *args, **kwargs)
            if not is_value((args, kwargs)):
                return send_once()
            ranks = partial(_ranks, self.ranks, args, kwargs)
            return ask.share((*key, repr((args, kwargs))), send_once, ranks)

        return call


def _ranks(
    ranks: Callable[..., bool], args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any
) -> bool:
    with suppress(AttributeError, LookupError, TypeError, ValueError):  # of another form
        return ranks(answer, *args, **kwargs)
    return False


def _is_rank(item: Any, score: str, count: int) -> bool:
    index = item["index"]
    return type(index) is int and 0 <= index < count and type(item[score]) in (float, int)


def _tei_ranks(answer: Any, query: str, texts: list[str]) -> bool:
    count = len(texts)
    return len(answer) == count and all(_is_rank(item, "score", count) for item in answer)


def _jina_ranks(answer: Any, url: str, json: dict[str, Any]) -> bool:
    count = len(json["documents"])
    return answer.ok and all(
        _is_rank(item, "relevance_score", count) for item in answer.json()["results"]
    )


def _tei_values(obj: Any) -> tuple[Any, ...]:
    check_httpx()
    return ()


_SESSION = "requests.sessions.Session"
#: attributes of a session that decide what it sends and how; cookies come and go with answers
_SENT = (
    *("cert", "max_redirects", "params", "proxies", "stream", "trust_env", "verify"),
    "headers",
)


def _session_values(name: str, obj: Any) -> tuple[Any, ...]:
    """Return what a session of the requests package adds to what it sends.

    Raises:
        NotAdoptedError: it has hooks, an authentication or adapters of the program's.
    """
    session = getattr(obj, name)
    if full_name(type(session)) != _SESSION:
        raise NotAdoptedError(f"its session is a {full_name(type(session))}", f"a {_SESSION}")
    check_object(session, "session")
    if session.auth is not None:
        raise NotAdoptedError("its session has an auth of its own", "a key")
    if any(session.hooks.values()):
        raise NotAdoptedError("its session has hooks", "a session without hooks")
    for prefix, adapter in session.adapters.items():
        if full_name(type(adapter)) != "requests.adapters.HTTPAdapter":
            raise NotAdoptedError(
                f"its session sends {prefix} by a {full_name(type(adapter))}", "its own adapter"
            )
        check_object(adapter, "an adapter of its session")
    sent = {name: getattr(session, name) for name in _SENT}
    sent["headers"] = dict(sent["headers"])
    for attribute, value in sent.items():
        check_value(value, f"the session's {attribute}")
    return number_of(session), sent


def _jina(session: str, url: Callable[[Any], str]) -> Protocol:
    return Protocol(
        name="jina",
        clients=(session,),
        classes=frozenset({_SESSION}),
        methods=("post",),
        values=partial(_session_values, session),
        endpoint=lambda obj: (url(obj), getattr(obj, session).headers.get("Authorization")),
    )


_LANGCHAIN_JINA = "langchain_community.document_compressors.jina_rerank"
LANGCHAIN_JINA = HttpReranker(
    name=f"{_LANGCHAIN_JINA}.JinaRerank",
    leaves=("compress_documents", "acompress_documents", "rerank"),
    protocol=_jina("session", lambda obj: sys.modules[_LANGCHAIN_JINA].JINA_API_URL),
    sent=(),
    ranks=_jina_ranks,
)
_LLAMA_INDEX_LEAVES = ("_postprocess_nodes", "_apostprocess_nodes")
LLAMA_INDEX_JINA = HttpReranker(
    name="llama_index.postprocessor.jinaai_rerank.base.JinaRerank",
    leaves=_LLAMA_INDEX_LEAVES,
    protocol=_jina("_session", lambda obj: obj.api_url),
    sent=(),
    ranks=_jina_ranks,
)
LLAMA_INDEX_TEI = HttpReranker(
    name="llama_index.postprocessor.tei_rerank.base.TextEmbeddingInference",
    leaves=(*_LLAMA_INDEX_LEAVES, "_call_api"),
    protocol=replace(
        TEI,
        methods=("_call_api",),
        values=_tei_values,
        endpoint=lambda obj: (obj.base_url, "/rerank", obj.auth_token),
    ),
    sent=("auth_token", "base_url", "timeout"),
    ranks=_tei_ranks,
)
