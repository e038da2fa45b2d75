"""Reranking on a server, over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rag_accel.engine_api import (
    Capability,
    Document,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    RerankBatch,
    ScoredDocument,
)
from rag_accel.engines.http.call_engine import HttpCallEngine
from rag_accel.engines.http.errors import ErrorWriter, Secret, check_base_url
from rag_accel.engines.http.openai_client import failure, omitted_headers, open_client
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.errors import EngineOutputError, RemoteEngineError

if TYPE_CHECKING:
    import httpx2

_PATH: Final = "/rerank"
_HINT: Final = "check that base_url is a server that answers POST /rerank"


@dataclass(frozen=True, slots=True)
class _Ranking:
    """A call, the documents that its answer orders, and whether it is repeated."""

    body: bytes
    documents: tuple[Document, ...]
    top_n: int | None
    is_repeated: bool


class RemoteRerankEngine(HttpCallEngine[_Ranking]):
    """An engine for RERANKING on a server that answers ``POST /rerank``.

    vLLM, infinity, text-embeddings-inference behind a gateway, Jina and Cohere do: the server is
    sent ``{"model", "query", "documents"}`` and answers with ``results`` of ``index`` and
    ``relevance_score``. All documents are asked for, so that equal scores keep the order given
    here. The texts leave the machine.

    Final value: ``tuple[ScoredDocument, ...]``, highest score first. Without documents no server is
    asked.

    Args:
        base_url: such as ``http://localhost:8000/v1``; without credentials or query.
        model: name the server knows.
        api_key: sent as a bearer token; never shown in any repr, error or log.
        options: limits, timeouts, retries.
        transport: httpx2 transport to use instead of the network's.

    Raises ConfigError on a bad URL or key and ImportError without openai.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        options: RemoteOptions | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        base_url = check_base_url(base_url)
        secret = Secret(api_key) if api_key else None
        options = options or RemoteOptions()
        self._model, self._endpoint = model, base_url + _PATH
        self._max_retries = options.max_retries
        self._errors = ErrorWriter(self._endpoint, secret)
        self._openai = open_client(base_url, secret, options, transport, "RemoteRerankEngine")
        self._headers = {**omitted_headers(secret), "Content-Type": "application/json"}
        concurrency = options.concurrency
        super().__init__(_profile(concurrency), self._endpoint, concurrency, "rerank-engine")

    def __repr__(self) -> str:
        return f"RemoteRerankEngine({self._endpoint!r}, model={self._model!r})"

    def _call_of(self, request: EngineRequest) -> _Ranking:
        payload = self._checked_payload(request, RerankBatch, self._jobs)
        if payload.top_n is not None and payload.top_n < 0:
            raise self._refusal("top_n is negative", payload.top_n, "from 0, or None for all")
        texts = [document.text for document in payload.documents]
        body = {"model": self._model, "query": payload.query, "documents": texts}
        content = json.dumps(body).encode()
        return _Ranking(content, payload.documents, payload.top_n, not request.is_retried)

    async def _answer(
        self, call: _Ranking, emit: Callable[[str], None]
    ) -> tuple[ScoredDocument, ...]:
        import httpx2

        if not call.documents:
            return ()
        found: Exception | None = None
        try:
            response = await self._openai.post(
                _PATH,
                cast_to=httpx2.Response,
                content=call.body,
                options={
                    "headers": self._headers,
                    "max_retries": self._max_retries if call.is_repeated else 0,
                },
            )
        except Exception as error:
            found = failure(error, self._errors)
            if found is None:
                raise
        else:
            scores = _scores(response.content, len(call.documents))
            if not isinstance(scores, str):
                return _ranked(call, scores)
            found = self._no_ranking(scores, len(call.documents))
        raise found  # only here, where it gets no context that would hold the key

    def _no_ranking(self, found: str, count: int) -> EngineOutputError:
        return EngineOutputError(
            "a server's ranking cannot be right",
            where=self._endpoint,
            found=self._errors.excerpt(found),
            valid=f"results with a finite relevance_score for each index from 0 to {count - 1}",
            hint=_HINT,
        )

    def _describe(self, error: BaseException) -> RemoteEngineError:
        text = f"{type(error).__name__}: {error}"
        return self._errors.fault("the HTTP client failed", text, "report this as a bug")

    async def _close_client(self) -> None:
        await self._openai.close()


def _scores(body: bytes, count: int) -> Sequence[float] | str:
    """Return the score of each document, or what is wrong with an answer."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    results = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(results, list):
        return body.decode("utf-8", "replace")
    scores: dict[int, float] = {}
    for result in results:
        index: Any = result.get("index") if isinstance(result, Mapping) else None
        score: Any = result.get("relevance_score") if isinstance(result, Mapping) else None
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if type(index) is not int or not is_number or not math.isfinite(score):
            return f"a result {result!r}"
        scores[index] = float(score)
    if sorted(scores) != list(range(count)) or len(results) != count:
        return f"{len(results)} results for {count} documents, of {len(scores)} different indexes"
    return [scores[at] for at in range(count)]


def _ranked(call: _Ranking, scores: Sequence[float]) -> tuple[ScoredDocument, ...]:
    order = sorted(range(len(scores)), key=lambda at: -scores[at])[: call.top_n]
    return tuple(ScoredDocument(call.documents[at], scores[at]) for at in order)


def _profile(concurrency: int) -> EngineProfile:
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.RERANKING}),
        max_batch=concurrency,
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
    )
