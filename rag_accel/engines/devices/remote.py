"""A server's embeddings as a member of a device group, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rag_accel.engine_api.transient import retry_after_s
from rag_accel.engines.devices.members import MemberChangedError, guess_tokens, restrict
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.hosted_engine import MAX_CALL_TEXTS
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.http.errors import ErrorWriter, Secret, check_base_url
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.engines.http.openai_client import failure, omitted_headers, open_client
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.replicas.pool_placement import pause_after
from rag_accel.errors import (
    ConfigError,
    EngineLostError,
    EngineOutputError,
    MemberPausedError,
    RemoteEngineError,
)

if TYPE_CHECKING:
    import httpx2


class AnswerFault(Exception):
    """An answer that cannot be right: the fault, and the found value."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(what, found)
        self.what = what
        self.found = found


class EmbeddingsAnswer(NamedTuple):
    """The vectors of an answer.

    Args:
        vectors: ``[count, dim], float32``, each of a finite length above 0.
        model: the model it names, None if it names none.
    """

    vectors: Vector
    model: str | None


def parse_embeddings(body: bytes, count: int) -> EmbeddingsAnswer:
    """Return the vectors of an answer by their ``index``, and the model it names.

    Args:
        body: JSON of an OpenAI-compatible server; vectors as lists or in base64.
        count: how many texts were sent.

    Raises:
        AnswerFault: no such JSON, a wrong number of vectors, an index that is missing or comes
            twice, different dimensions, what is no number, NaN, infinity, or a length that is 0 or
            beyond float32.
    """
    try:
        answer = json.loads(body)
        data, model = answer["data"], answer.get("model")
        rows = [(item["index"], item["embedding"]) for item in data]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        beginning = body[:1000].decode("utf-8", "replace")
        raise AnswerFault("the answer is no list of embeddings", beginning) from None
    if len(rows) != count:
        raise AnswerFault("wrong number of vectors", f"{len(rows)} for {count} texts")
    indexes = [index for index, _ in rows]
    if any(type(index) is not int for index in indexes) or sorted(indexes) != list(range(count)):
        raise AnswerFault("an index of a vector is missing or wrong", str(indexes[:16]))
    vectors: list[Any] = [None] * count
    for index, value in rows:
        vectors[index] = _vector(value, index)
    if len({len(vector) for vector in vectors}) != 1:
        sizes = sorted({len(vector) for vector in vectors})
        raise AnswerFault("vectors of different dimensions", str(sizes[:16]))
    table = np.stack(vectors)
    _require_lengths(table)
    return EmbeddingsAnswer(table, model if isinstance(model, str) else None)


def _require_lengths(table: Vector) -> None:
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        raise AnswerFault("a vector is not finite", f"vector {int(np.argmin(finite))}")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        squares = np.einsum("ij,ij->i", table, table)
    bad = ~np.isfinite(squares) | ~table.any(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise AnswerFault("the length of a vector is 0 or no float32", f"vector {row}")


def _vector(value: Any, index: int) -> Vector:
    try:
        if isinstance(value, str):
            decoded = base64.b64decode(value, validate=True)
            vector = np.frombuffer(decoded, dtype="<f4").astype(np.float32)
        elif not set(map(type, value)) <= {int, float}:  # NumPy reads true and "1.0" as 1
            raise ValueError
        else:
            with np.errstate(over="ignore"):  # becomes infinite, which is refused
                vector = np.array(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError, binascii.Error):
        vector = np.empty(0, dtype=np.float32)
    if vector.ndim != 1 or not len(vector):
        raise AnswerFault("an embedding is no vector of numbers", f"vector {index}")
    return vector


ONE_CALL = RemoteOptions(
    concurrency=1, read_timeout_s=30.0, total_timeout_s=60.0, max_retries=0, stream_usage=False
)
"""Options without retries: the group tries another member first."""

MOST_IN_FLIGHT = 64
"""Most calls to one server at once."""

_PATH = "/embeddings"
_TOO_MANY = 429
_CLOSE_S = 5.0


class RemoteMember:
    """``/v1/embeddings`` of an OpenAI-compatible server, as a member of a device group.

    The texts that this member embeds leave the machine: those of every request of its accelerator,
    unless ``roles`` or ``namespaces`` say otherwise.

    HTTP 429 pauses this member alone, as long as ``Retry-After`` says, at most two minutes; without
    it for 0.5 s, doubled up to 8 s at each further one. Other errors are failed steps: the group
    tries another member. Most servers compute with fewer bits or other kernels than this machine,
    so that they join a group of another first member only with ``member_tolerance``. An answer that
    names another ``model`` than the first one did is an error: it never joins again with that one.

    Args:
        base_url: the server, such as ``http://localhost:8080/v1``.
        model: the model's name there.
        api_key: sent to this server only, and shown in no error.
        name: its name in reports; ``remote`` by default.
        options: bounds and time limits of a call. With ``max_retries`` calls are repeated before
            the group hears of an error, and HTTP 429 with them.
        max_texts: most texts of one call.
        max_tokens: about the most tokens of one call.
        query_prompt: put before each query, where the model wants it.
        document_prompt: the same for documents.
        in_flight: most calls at once.
        roles: whose texts it may be given: ``query``, ``document`` or both; by default both.
        namespaces: of which tenants it may be given texts; by default of all.
        transport: carries the calls instead of the network.

    Raises:
        ConfigError: a bad base_url, key, option or restriction.
        ImportError: ``openai`` is not installed.
    """

    max_threads = 0
    may_change = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        name: str = "remote",
        options: RemoteOptions = ONE_CALL,
        max_texts: int = MAX_CALL_TEXTS,
        max_tokens: int = 8192,
        query_prompt: str = "",
        document_prompt: str = "",
        in_flight: int = 2,
        roles: Iterable[str] | None = None,
        namespaces: Iterable[str] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        secret = Secret(api_key) if api_key else None
        base_url = check_base_url(base_url)
        if not 1 <= in_flight <= MOST_IN_FLIGHT:
            raise ConfigError(
                "a server cannot be asked so often at once",
                where="RemoteMember(in_flight=)",
                found=in_flight,
                valid=f"1 to {MOST_IN_FLIGHT}",
            )
        options = replace(options, concurrency=max(options.concurrency, in_flight))
        restrict(self, roles, namespaces)
        self.in_flight = in_flight
        self.name = name
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self._model = model
        self._prompts: dict[Role, str] = {"query": query_prompt, "document": document_prompt}
        self._options = options
        self._endpoint = base_url + _PATH
        self._errors = ErrorWriter(self._endpoint, secret)
        self._openai = open_client(base_url, secret, options, transport, "RemoteMember")
        self._headers = {**omitted_headers(secret), "Content-Type": "application/json"}
        self._loop = LoopThread(f"rag-accel-{name}")
        self._num_refused = 0
        self._is_over = False
        #: as the first answer named it
        self._served_model: str | None = None
        self._calls: set[concurrent.futures.Future[bytes | Exception]] = set()
        #: guards the running calls against ``abort`` and ``interrupt``
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], role: Role, threads: int) -> Vector:
        """Ask the server once.

        Raises:
            MemberPausedError: the server answered HTTP 429.
            RemoteEngineError: no connection, no answer in time, or an error status.
            EngineOutputError: an answer that cannot be right.
            MemberChangedError: an answer of another model than the first one was of.
            EngineLostError: the member was closed meanwhile.
        """
        prompt = self._prompts[role]
        body = {
            "model": self._model,
            "input": [prompt + text for text in texts],
            "encoding_format": "base64",
        }
        answer = self._answer(json.dumps(body).encode())
        if isinstance(answer, Exception):
            raise answer  # only here, where it gets no context that would hold the key
        self._num_refused = 0
        try:
            parsed = parse_embeddings(answer, len(texts))
        except AnswerFault as fault:
            found, what = self._errors.excerpt(fault.found), fault.what
        else:
            return self._of_same_model(parsed)
        raise EngineOutputError(
            what,
            where=self._endpoint,
            found=found,
            valid=f"one vector of numbers, not all 0, for each of {len(texts)} texts, by index",
            hint="check that base_url is an OpenAI-compatible server",
        )

    def estimate(self, text: str) -> int:
        """Guess the tokens of a text from its length."""
        return guess_tokens(text)

    def interrupt(self) -> None:
        """Let the running calls fail now; later ones are not concerned. From any thread."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def abort(self) -> None:
        """End the running calls, and let later ones fail; from any thread."""
        with self._lock:
            self._is_over = True
        self.interrupt()

    def close(self) -> None:
        """Close the connections and end the thread that carried the calls."""
        self.abort()
        if self._loop.is_started:
            try:
                self._loop.call(self._openai.close()).result(timeout=_CLOSE_S)
            finally:
                self._loop.close()

    def _of_same_model(self, answer: EmbeddingsAnswer) -> Vector:
        with self._lock:
            first = self._served_model = self._served_model or answer.model
        if answer.model is not None and answer.model != first:
            raise MemberChangedError(
                "the server answers with another model than before",
                where=self._endpoint,
                found=self._errors.excerpt(answer.model),
                valid=self._errors.excerpt(str(first)),
                hint="serve the first model there again, or make another accelerator",
            )
        return answer.vectors

    def _answer(self, body: bytes) -> bytes | Exception:
        with self._lock:
            if self._is_over:
                return self._given_up()
            self._loop.start()
            call = self._loop.call(self._ask(body))
            self._calls.add(call)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            return self._given_up()
        except BaseException:  # an interrupt, in the caller's thread
            call.cancel()
            raise
        finally:
            with self._lock:
                self._calls.discard(call)

    def _given_up(self) -> Exception:
        if self._is_over:
            return EngineLostError("this member was closed", where=self.name)
        hint = "see that the server answers; MemberLimits says how long it is waited for"
        return self._errors.fault("the call was given up", "no answer so far", hint)

    async def _ask(self, body: bytes) -> bytes | Exception:
        import httpx2

        options: Any = {"headers": self._headers}
        try:
            async with asyncio.timeout(self._options.total_timeout_s):
                response = await self._openai.post(
                    _PATH, cast_to=httpx2.Response, content=body, options=options
                )
                return response.content
        except TimeoutError:
            found = f"no end of it after {self._options.total_timeout_s:g} s"
            hint = "raise RemoteOptions.total_timeout_s, or send fewer texts at once"
            return self._errors.fault("the call took longer than it may", found, hint)
        except Exception as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> RemoteEngineError:
        found = failure(error, self._errors)
        if found is None:
            text = f"{type(error).__name__}: {error}"
            return self._errors.fault("the HTTP client failed", text, "report this as a bug")
        if found.status != _TOO_MANY:
            return found
        self._num_refused += 1
        return MemberPausedError(
            found.what,
            status=found.status,
            where=found.where,
            found=found.found,
            hint="send less, or ask the server's owner for a higher limit",
            retry_after_s=pause_after(self._num_refused - 1, retry_after_s(found) or None),
        )
