"""The filling of a vLLM server's folder with states of texts ahead of any prompt.

Each text is sent once in a prompt of its own, for the sake of what the server keeps of it
(FusionRAG section 3.1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rag_accel.engine_api import ChunkSpan, GenerationInput, GenerationOutput, Message, PromptUse
from rag_accel.engines.http.errors import Secret, check_base_url
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient
from rag_accel.engines.llm.remote.completions import request_body
from rag_accel.errors import ConfigError, RemoteEngineError
from rag_accel.kv.prompt_chunks import PLACE, message_with_place
from rag_accel.kv.served_prompts import reuse_request_of

#: Stands behind the texts of a prompt that has nothing else there.
_QUESTION = "\n\n?"
#: vLLM's priority of what nobody waits for; that of others is 0.
_LATE = 1_000_000
#: After so many answers of which none tells of a kept text, no other text is sent.
_MOST_UNKEPT = 16
_BAD_REQUEST = 400

#: Takes how many texts are done, and of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ServerFillOptions:
    """Options of the filling of a server.

    Args:
        model: the name the server knows; None for the first that it names.
        namespace: of the programs that are to find the states.
        concurrency: requests under way at once, 1 to 1024.
        timeout_s: for each answer, up to a day.

    Raises ConfigError on a value out of range.
    """

    model: str | None = None
    namespace: str = ""
    concurrency: int = 8
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("concurrency", self.concurrency, 1024),
            ("timeout_s", self.timeout_s, 86_400),
        ):
            if not 1 <= value <= most:
                raise ConfigError(
                    "option out of range",
                    where=f"ServerFillOptions.{name}",
                    found=repr(value),
                    valid=f"1 to {most}",
                )


@dataclass(frozen=True, slots=True)
class ServerFillReport:
    """The counts of a fill.

    Args:
        model: the server's name of it.
        texts: how many were given.
        left_out: of those, texts that the server keeps nothing of, such as short ones, or that are
            there twice.
        sent: texts whose state the server has now.
        found: of those, texts whose state it had already.
        tokens: of the others.
        seconds: of it all.
    """

    model: str
    texts: int
    left_out: int
    sent: int
    found: int
    tokens: int
    seconds: float


def fill_server(
    base_url: str,
    texts: Sequence[str],
    prompt: Sequence[Message],
    *,
    options: ServerFillOptions | None = None,
    api_key: str | None = None,
    progress: Progress = lambda done, total: None,
) -> ServerFillReport:
    """Have a server keep the states of texts, for requests that name them.

    They stand behind the head of requests with the same messages of the system. A text that is
    kept is loaded, not computed, so that a fill that ended early goes on where it was.

    Args:
        base_url: such as ``http://localhost:8000/v1``.
        texts: as they will stand in prompts.
        prompt: messages with ``{context}`` once, where the texts stand.
        options: how it is filled.
        api_key: sent as a bearer token.
        progress: takes after each text how many are done.

    Raises:
        ConfigError: there are no texts, one is refused, the prompt has no place for them, or the
            server has no model or keeps no texts.
        ImportError: ``openai`` is not installed.
        RemoteEngineError: the server refuses a request or does not answer; what was sent before is
            kept.
    """
    if not texts:
        raise ConfigError("there are no texts", where="filling of a server", valid="at least one")
    fill = _ServerFill(base_url, api_key, prompt, options or ServerFillOptions(), progress)
    thread = LoopThread("rag-accel-fill")
    thread.start()
    try:
        return thread.call(fill.run(texts)).result()
    finally:
        thread.close()


class _ServerFill:
    """One filling of a server, for use on one event loop."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        prompt: Sequence[Message],
        options: ServerFillOptions,
        progress: Progress,
    ) -> None:
        remote = RemoteOptions(
            concurrency=options.concurrency,
            read_timeout_s=options.timeout_s,
            total_timeout_s=options.timeout_s,
        )
        secret = Secret(api_key) if api_key else None
        self._client = ChatClient(check_base_url(base_url), secret, remote)
        self._at = message_with_place(prompt)
        last = prompt[-1]
        if last.content.strip() == PLACE:
            prompt = (*prompt[:-1], replace(last, content=last.content + _QUESTION))
        self._prompt, self._options, self._progress = tuple(prompt), options, progress
        self._model = options.model or ""
        self._priority: Mapping[str, Any] = {"priority": _LATE}
        self._found = self._computed = self._tokens = self._left_out = 0
        self._was_loaded = False

    async def run(self, texts: Sequence[str]) -> ServerFillReport:
        started = time.perf_counter()
        numbers: dict[str, int] = {}
        for number, text in enumerate(texts, 1):
            numbers.setdefault(text, number)
        left = iter(numbers.items())
        self._progress(0, len(numbers))

        async def work(most: int | None = None) -> None:
            for text, number in islice(left, most):
                self._count(await self._answer(text, number))
                done = self._found + self._computed + self._left_out
                self._progress(done, len(numbers))

        workers: list[asyncio.Future[None]] = []
        try:
            self._model = self._model or await self._first_model()
            await work(1)  # shows whether the server can keep any, before others are sent
            workers += [asyncio.ensure_future(work()) for _ in range(self._options.concurrency)]
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self._client.aclose()
        self._require_kept(is_end=True)
        return ServerFillReport(
            model=self._model,
            texts=len(texts),
            left_out=self._left_out + len(texts) - len(numbers),
            sent=self._found + self._computed,
            found=self._found,
            tokens=self._tokens,
            seconds=time.perf_counter() - started,
        )

    async def _answer(self, text: str, number: int) -> PromptUse | None:
        """Return how the server has computed a text's prompt; None if it does not tell."""
        turn = self._prompt[self._at]
        start = turn.content.index(PLACE)
        filled = replace(turn, content=turn.content.replace(PLACE, text))
        messages = (*self._prompt[: self._at], filled, *self._prompt[self._at + 1 :])
        span = ChunkSpan(self._at, start, start + len(text))
        asked = GenerationInput(
            messages, max_tokens=1, options={"temperature": 0}, chunk_spans=(span,)
        )
        # Behind the head alone, where it is found whatever other texts a prompt holds.
        wanted = reuse_request_of(asked, "full", namespace=self._options.namespace, recipe="alone")
        if wanted is None:  # an empty text
            return PromptUse()
        try:
            return (await self._sent(asked, wanted.fields())).use
        except RemoteEngineError as error:
            if error.status != _BAD_REQUEST:
                raise
            raise ConfigError(
                "the server refuses a text",
                where=f"text {number}",
                found=str(error.found),
                hint="cut it as it is cut for retrieval",
            ) from error

    async def _sent(self, asked: GenerationInput, fields: Mapping[str, Any]) -> GenerationOutput:
        """Return the answer to a prompt, sent to be computed late where the server can."""
        for priority in (self._priority, {}) if self._priority else ({},):
            body = request_body(
                asked, self._model, stream=False, stream_usage=False, fields={**fields, **priority}
            )
            try:
                found = await self._client.complete(ChatCall(body, stream=False), lambda text: None)
            except RemoteEngineError as error:
                if error.status != _BAD_REQUEST or not priority:
                    raise
            else:
                self._priority = priority
                return found
        raise AssertionError("a request without priority returns or raises")

    def _count(self, use: PromptUse | None) -> None:
        if use is None:
            raise self._unkept("no word of them")
        encoded = use.approximate - use.from_prefix - use.from_chunks
        if encoded > 0:
            self._computed += 1
            self._tokens += encoded
        elif use.approximate:
            self._found += 1
        else:
            self._left_out += 1
        self._was_loaded |= encoded > 0 or use.from_chunks > 0
        self._require_kept(is_end=False)

    def _require_kept(self, *, is_end: bool) -> None:
        """Raise where no text was kept: what a server's own cache has shows nothing."""
        if not self._was_loaded and (is_end or self._left_out >= _MOST_UNKEPT):
            raise self._unkept("none was kept; texts of fewer than eight tokens never are")

    def _unkept(self, found: str) -> ConfigError:
        return ConfigError(
            "the server keeps no states of texts",
            where=self._client.endpoint,
            found=found,
            valid="a server started by python -m vllm_rag_accel.serve",
            hint="the server's log says why texts are not reused",
        )

    async def _first_model(self) -> str:
        models: Any = await self._client.models()
        entries = models.get("data") if isinstance(models, dict) else None
        first = entries[0] if isinstance(entries, list) and entries else None
        name = first.get("id") if isinstance(first, dict) else None
        if not isinstance(name, str):
            raise ConfigError(
                "the server is not reached, or names no model",
                where=f"{self._client.base_url}/models",
                hint="check the URL, or name the model by --model",
            )
        return name
