"""The filling of a vLLM server's folder with states of texts ahead of any prompt.

Each text is sent once behind the head of later prompts, as tokens, for the sake of what the server
keeps of it (FusionRAG section 3.1).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from rag_accel.engine_api import Message
from rag_accel.engines.llm.remote.fill_client import FillClient
from rag_accel.errors import ConfigError, RemoteEngineError
from rag_accel.kv.prompt_chunks import PLACE, message_with_place
from rag_accel.kv.reuse_request import ReuseRequest
from rag_accel.kv.served_prompts import answered_texts

#: Stands for a text where the head of a prompt is looked for.
_TEXT = "A text"
#: vLLM's priority of what nobody waits for; that of others is 0.
_LATE = 1_000_000
_WHERE = "filling of a server"
#: A refusal of the request's fields.
_BAD_REQUEST = 400

#: Is told how many texts are done, and of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ServerFillOptions:
    """Options of the filling of a server.

    Args:
        model: the name the server knows; None for the first that it names.
        namespace: of the programs that are to find the states.
        concurrency: requests under way at once.
        least_chunk_tokens: shorter texts are left out, as no request names them.
        timeout_s: for each answer.

    Raises ConfigError on a value out of range.
    """

    model: str | None = None
    namespace: str = ""
    concurrency: int = 8
    least_chunk_tokens: int = 8
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("concurrency", self.concurrency, 1024),
            ("least_chunk_tokens", self.least_chunk_tokens, 1 << 20),
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
        head_tokens: of what texts stand behind.
        texts: how many were given.
        left_out: of those, texts that no program would name: short, or there twice.
        sent: texts whose state the server has now.
        found: of those, texts whose tokens it had in its folder or its own cache already.
        tokens: of the others.
        seconds: of it all.
    """

    model: str
    head_tokens: int
    texts: int
    left_out: int
    sent: int
    found: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _FillText:
    """A text of the corpus: its number, from 1, and its tokens alone."""

    number: int
    ids: tuple[int, ...]


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
        progress: is told after each text how many are done.

    Raises:
        ConfigError: there are no texts, one has no room, the prompt has no place for them, or the
            server has no connector, no model, or no ``/tokenize``.
        RemoteEngineError: the server refuses a request or does not answer; what was sent before is
            kept.
    """
    if not texts:
        raise ConfigError("there are no texts", where=_WHERE, valid="at least one")
    chosen = options or ServerFillOptions()
    client = FillClient(base_url, api_key, chosen.timeout_s)
    return _ServerFill(client, chosen, progress).run(texts, prompt)


class _ServerFill:
    """One filling of a server."""

    def __init__(self, client: FillClient, options: ServerFillOptions, progress: Progress) -> None:
        self._client, self._options, self._progress = client, options, progress
        self._model = options.model or ""
        self._head: tuple[int, ...] = ()
        self._room: int | None = None
        self._has_priority = True

    def run(self, texts: Sequence[str], prompt: Sequence[Message]) -> ServerFillReport:
        started = time.perf_counter()
        self._model = self._options.model or self._first_model()
        first, second = (
            self._tokens({"messages": messages, "add_generation_prompt": True})
            for messages in head_probes(prompt)
        )
        same = next(
            (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
            min(len(first), len(second)),
        )
        self._head = first[:same]
        found = tokens = 0
        total = len(dict.fromkeys(texts))
        self._progress(0, total)
        left_out = len(texts) - total
        for done, (text, was_there) in enumerate(self._filled(texts), 1):
            left_out += text is None
            found += was_there
            tokens += 0 if text is None or was_there else len(text.ids)
            self._progress(done, total)
        return ServerFillReport(
            model=self._model,
            head_tokens=len(self._head),
            texts=len(texts),
            left_out=left_out,
            sent=len(texts) - left_out,
            found=found,
            tokens=tokens,
            seconds=time.perf_counter() - started,
        )

    def _filled(self, texts: Sequence[str]) -> Iterator[tuple[_FillText | None, bool]]:
        """Yield the texts as the server has them, and whether it had them; None for one left out.

        The first that is sent shows whether the server can keep any, before the others are.
        """
        numbers: dict[str, int] = {}
        for number, text in enumerate(texts, 1):
            numbers.setdefault(text, number)
        left = iter(numbers.items())
        for text, number in left:
            found = self._fill(text, number)
            yield found
            if found[0] is not None:
                break
        pool = ThreadPoolExecutor(self._options.concurrency, "rag-accel-fill")
        running: deque[Future[tuple[_FillText | None, bool]]] = deque()
        try:
            for text, number in left:
                if len(running) >= 2 * self._options.concurrency:
                    yield running.popleft().result()
                running.append(pool.submit(self._fill, text, number))
            while running:
                yield running.popleft().result()
        finally:  # what is under way ends first; nothing else begins
            pool.shutdown(cancel_futures=True)

    def _fill(self, text: str, number: int) -> tuple[_FillText | None, bool]:
        ids = self._tokens({"prompt": text, "add_special_tokens": False})
        if len(ids) < self._options.least_chunk_tokens:
            return None, False
        if self._room is not None and len(self._head) + len(ids) >= self._room:
            raise ConfigError(
                "a text is longer than the model's context",
                where=f"text {number}",
                found=f"{len(self._head) + len(ids)} tokens with the head",
                valid=f"less than {self._room}",
                hint="cut it as it is cut for retrieval",
            )
        answer = self._complete((*self._head, *ids))
        usage = _object(answer.get("usage"))
        cached = _object(usage.get("prompt_tokens_details")).get("cached_tokens")
        # The last token is always computed.
        was_there = type(cached) is int and cached >= len(self._head) + len(ids) - 1
        return _FillText(number, ids), was_there

    def _complete(self, ids: tuple[int, ...]) -> Mapping[str, Any]:
        """Return the answer to a prompt that the server has kept."""
        start = len(self._head)
        wanted = ReuseRequest(
            "exact",
            spans=((start, len(ids)),),
            head=start,
            namespace=self._options.namespace,
        )
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            **wanted.fields(),
        }
        url = f"{self._client.base_url}/completions"
        answer = _object(self._posted(url, body))
        said = answered_texts(answer.get("kv_transfer_params"))
        if said is None or "refused" in said:
            raise ConfigError(
                "the server keeps no states of texts",
                where=url,
                found="no word of them" if said is None else str(said["refused"])[:200],
                valid="a server started by python -m vllm_rag_accel.serve",
            )
        return answer

    def _posted(self, url: str, body: dict[str, Any]) -> Any:
        """Return the answer to a body, sent to be computed late where the server can."""
        if not self._has_priority:
            return self._client.post(url, body)
        try:
            return self._client.post(url, {**body, "priority": _LATE})
        except RemoteEngineError as error:
            if error.status != _BAD_REQUEST:
                raise
        answer = self._client.post(url, body)
        self._has_priority = False  # it was that
        return answer

    def _tokens(self, body: dict[str, Any]) -> tuple[int, ...]:
        url = f"{self._client.root}/tokenize"
        try:
            answer = _object(self._client.post(url, {"model": self._model, **body}))
        except RemoteEngineError as error:
            if error.status not in (404, 405):
                raise
            found = str(error.found)
        else:
            ids, room = answer.get("tokens"), answer.get("max_model_len")
            if isinstance(ids, list) and all(type(token) is int for token in cast("Any", ids)):
                self._room = room if type(room) is int else self._room
                return tuple(cast("list[int]", ids))
            found = "an answer without tokens"
        raise ConfigError(
            "the server makes no tokens of texts",
            where=url,
            found=found,
            valid="a server of vLLM's, whose /tokenize is reached",
        )

    def _first_model(self) -> str:
        url = f"{self._client.base_url}/models"
        entries = _object(self._client.get(url)).get("data")
        first = _object(entries[0]).get("id") if isinstance(entries, list) and entries else None
        if not isinstance(first, str):
            raise ConfigError(
                "the server names no model", where=url, found="none", hint="name it by --model"
            )
        return first


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def head_probes(prompt: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return two lists of messages whose tokens are the same as far as the head goes.

    It ends before the first message that is not the system's, or that holds a text. In one list
    this message begins as it does in prompts, in the other one by another character.

    Raises:
        ConfigError: the prompt does not say where its texts stand.
    """
    at = message_with_place(prompt)
    at = next((before for before in range(at) if prompt[before].role != "system"), at)
    begins = prompt[at].content.replace(PLACE, _TEXT)
    other = "9" if begins[:1] != "9" else "Z"
    return _messages(prompt, at, begins), _messages(prompt, at, other)


def _messages(prompt: Sequence[Message], at: int, content: str) -> list[dict[str, Any]]:
    turns = [{"role": turn.role, "content": turn.content.replace(PLACE, _TEXT)} for turn in prompt]
    turns[at]["content"] = content
    return turns if turns[-1]["role"] == "user" else [*turns, {"role": "user", "content": "?"}]
