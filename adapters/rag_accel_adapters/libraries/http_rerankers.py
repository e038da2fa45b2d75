"""Rerankers whose clients send a query and its texts in one HTTP call, and never again.

Equal calls in flight are one only where nothing of an object's can look at who calls, as for
embeddings. The first caller asks where it is. Each caller's own method reads the answer, which is
the server's: documents, scores, events and errors are those of that caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import HOSTED_RERANKER, OWN_METHODS, Ask, ProxyClass
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.as_shipped import check_object
from rag_accel_adapters.libraries.http_embeddings import TEI, Protocol, check_httpx, check_plain
from rag_accel_adapters.libraries.openai_clients import check_value, digest_of, is_value, number_of

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
        ranks: tells whether an answer, given the arguments by which it was asked for, ranks their
            texts; of another form, it may raise.
    """

    name: str
    leaves: tuple[str, ...]
    protocol: Protocol
    sent: tuple[str, ...]
    ranks: Callable[..., bool]

    def row(self) -> ProxyClass:
        """Return the class as one whose objects can have proxies."""
        return ProxyClass(
            *(self.leaves, lambda obj: None, self._proxy, "reranker on a server"),
            *(OWN_METHODS, _UNLESS),
            effects=HOSTED_RERANKER,
            check=self._check,
        )

    def _check(self, obj: Any, cls: type) -> None:
        check_plain(obj, cls, self.name, self.leaves)
        digest_of(self._values, obj)

    def _values(self, obj: Any) -> tuple[Any, ...]:
        settings = {name: getattr(obj, name) for name in self.sent}
        for name, value in settings.items():
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

    def _sharing(self, ask: Ask, key: tuple[Any, ...], send: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_value((args, kwargs)):
                return send(*args, **kwargs)
            return ask.share(
                (*key, repr((args, kwargs))),
                partial(send, *args, **kwargs),
                lambda answer: self.ranks(answer, *args, **kwargs),
            )

        return call


def _are_ranks(items: list[Any], score: str, count: int) -> bool:
    at = {(type(item["index"]), item["index"]) for item in items}
    scores = {type(item[score]) for item in items}
    return at <= {(int, index) for index in range(count)} and scores <= {float, int}


def _tei_ranks(answer: list[Any], query: str, texts: list[str]) -> bool:
    return len(answer) == len(texts) and _are_ranks(answer, "score", len(texts))


def _jina_ranks(answer: Any, url: str, json: dict[str, Any]) -> bool:
    count = len(json["documents"])
    return answer.ok and _are_ranks(answer.json()["results"], "relevance_score", count)


_SESSION = "requests.sessions.Session"
#: attributes of a session that decide what it sends and how; its cookies are its own
_SENT = ("cert", "max_redirects", "params", "proxies", "stream", "trust_env", "verify")


def _session_values(name: str, obj: Any) -> tuple[Any, ...]:
    """Return what a session of the requests package adds to what it sends.

    Raises:
        NotAdoptedError: it has hooks, an authentication or adapters of the program's.
    """
    session = getattr(obj, name)
    adapter = "requests.adapters.HTTPAdapter"
    for part, cls in ((session, _SESSION), *((one, adapter) for one in session.adapters.values())):
        if full_name(type(part)) != cls:
            raise NotAdoptedError(f"its session sends by a {full_name(type(part))}", f"a {cls}")
        check_object(part, "session")
    if session.auth is not None or any(session.hooks.values()):
        raise NotAdoptedError("its session has an auth or hooks", "a key, and no hooks")
    sent = {**{name: getattr(session, name) for name in _SENT}, "headers": dict(session.headers)}
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
        values=lambda obj: check_httpx(),
        endpoint=lambda obj: (obj.base_url, "/rerank", obj.auth_token),
    ),
    sent=("auth_token", "base_url", "timeout"),
    ranks=_tei_ranks,
)
