"""The program's own models on vLLM servers, which are told of the retrieved texts of prompts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.engine_api import GenerationInput
from rag_accel.engine_api.transient import is_doubtful, is_transient, retry_after_s
from rag_accel.engines.llm.remote.remote_llm import RemoteModel, keys_of
from rag_accel.engines.llm.remote.servers import SERVERS, ModelServer
from rag_accel.engines.replicas.pool_placement import Failure, why_of
from rag_accel.interception.fallback import fail_open
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.reuse_request import ReuseRequest, ServedReuse
from rag_accel.kv.served_prompts import answered_texts, reuse_request_of, served_report
from rag_accel.recognition.served_models import ServedPrompt

_WHERE = "llm"
#: why calls of models on servers are not changed
UNCHANGED = (
    "endpoint_limits is off, kv_reuse is exact and no RemoteLLM names its server;"
    " endpoint_limits=True has calls wait for their turn, kv_reuse='full' or 'fused' names texts to"
    " a vLLM server, and Accelerator(llm=RemoteLLM(...)) spreads calls over several"
)


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of one prompt, for the server that it is sent to."""

    server: ModelServer
    request: ReuseRequest

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.request.fields()

    def report(self, params: object, cached_tokens: int | None) -> Mapping[str, Any] | None:
        said = answered_texts(params)
        self.server.note_answer(said is not None, self.request.texts)
        if said is None:
            return None
        return {"kv_reuse": served_report(self.request.reuse, said, cached_tokens)}

    def streamed(self, cached_tokens: int | None) -> Mapping[str, Any]:
        """Return what a stream says of its making: first what was asked for, then the tokens."""
        if cached_tokens is not None:
            return {"kv_reuse": {"cached_tokens": cached_tokens}}
        return {"kv_reuse": {"mode": self.request.reuse, "texts": len(self.request.texts)}}


def reuse_of(accelerator: Accelerator) -> ServedReuse | None:
    """Return how servers reuse texts; None where they are not told of any."""
    texts = accelerator.options.kv_reuse.partition("+")[0]  # a server computes no trees
    return texts if texts in ("full", "fused") else None


def changes(accelerator: Accelerator) -> bool:
    """Tell whether calls of models on servers are changed at all."""
    return reuse_of(accelerator) is not None or accelerator.local_llms.has_servers


def describe(accelerator: Accelerator) -> str | None:
    """Return how a model on a server runs; None where it is a leaf like any other."""
    is_limited = accelerator.options.endpoint_limits
    if not (changes(accelerator) or is_limited):
        return None
    reuse = reuse_of(accelerator)
    told = ["recognised model on a server: its own methods run"]
    if is_limited:
        told.append("once its endpoint refuses calls, they wait for their turn")
    if reuse is not None:
        told.append(
            f"a server of vLLM's is told of retrieved texts (kv_reuse is {reuse}, approximate)"
        )
    if accelerator.local_llms.has_servers:
        told.append("calls of a server of a RemoteLLM go to any of its servers")
    return "; ".join(told)


class ServerPlace:
    """One of the servers of a model, for one call of a program's client.

    Args:
        model: the servers.
        at: which one.
        keys: by which they know the prompt.
        tried: those that have failed it.
    """

    def __init__(
        self, model: RemoteModel, at: int, keys: Mapping[Hashable, int], tried: frozenset[int]
    ) -> None:
        server = model.servers[at]
        self.base_url, self.api_key = server.base_url, server.api_key
        self.model = server.model or ""
        self.is_last = len(tried) + 1 >= len(model.servers)
        self._model, self._at, self._keys, self._tried = model, at, keys, tried
        self._began = model.placement.clock.now()
        #: a server that has failed the call, whose failure is its own if this one answers
        self._doubt: tuple[int, Failure] | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def ended(self) -> None:
        """Note that the whole answer is there, or that nobody waits for it; more than once."""
        if self._ends():
            placement = self._model.placement
            placement.left(self._at, 1)
            placement.succeeded(self._at, 1, placement.clock.now() - self._began)
            self._decide(is_own=True)

    def failed(self, error: BaseException) -> None:
        if self._ends():
            self._model.placement.left(self._at, 1)
            if is_transient(error):
                self._model.placement.failed(self._at, self._failure(error))
            self._decide(is_own=False)

    def another(self, error: BaseException) -> ServerPlace | None:
        """Return the server to ask after an error before anything of the answer; None for none.

        After an error that may be this server's or the call's, one other server tells which.
        """
        is_doubted = not is_transient(error) and self._doubt is None and is_doubtful(error)
        if not (is_doubted or is_transient(error)):
            self.failed(error)
            return None
        found = _place(self._model, self._keys, self._tried | {self._at})
        if found is not None:
            found._doubt, self._doubt = self._doubt, None
        if found is not None and is_doubted and self._ends():
            found._doubt = (self._at, self._failure(error))
        else:
            self.failed(error)
        return found

    def _failure(self, error: BaseException) -> Failure:
        now = self._model.placement.clock.now()
        return Failure(self._began, now, why_of(error), retry_after_s(error))

    def _decide(self, is_own: bool) -> None:
        """Pause the server in doubt if the failure was its own; it has the call no longer."""
        if self._doubt is None:
            return
        (at, failure), self._doubt = self._doubt, None
        self._model.placement.left(at, 1)
        if is_own:
            self._model.placement.failed(at, failure)

    def _ends(self) -> bool:
        """Tell whether the call ends with this for the first time."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        return is_first


def place_of(identity: RequestIdentity, prompt: ServedPrompt, name: object) -> ServerPlace | None:
    """Return the server for a prompt; None where it is the program's own alone."""
    if not isinstance(name, str):
        return None
    model = identity.accelerator.local_llms.served_by(prompt.base_url.rstrip("/"), name)
    if model is None:
        return None
    try:
        located = locate_chunks(
            GenerationInput(prompt.messages), identity.retrieved.texts(), identity.retrieved.asked
        )
        return _place(model, keys_of(located, identity.accelerator.options.namespace), frozenset())
    except Exception as error:  # the prompt goes to the program's own server
        fail_open(identity.accelerator, error, _WHERE)
        return None


def _place(
    model: RemoteModel, keys: Mapping[Hashable, int], tried: frozenset[int]
) -> ServerPlace | None:
    at = model.placement.take(keys, 1, tried)
    return None if at is None else ServerPlace(model, at, keys, tried)


def texts_of(identity: RequestIdentity, prompt: ServedPrompt) -> PromptTexts | None:
    """Return the texts of a prompt; None where it is sent as it is.

    The first prompt for a server waits for the server's answer to what it is.
    """
    server = _server(identity, prompt)
    if server is not None and not server.is_known:
        server.wait()
    return _texts(identity, prompt, server)


async def atexts_of(identity: RequestIdentity, prompt: ServedPrompt) -> PromptTexts | None:
    """Do as ``texts_of`` without blocking the loop."""
    server = _server(identity, prompt)
    if server is not None and not server.is_known:
        await asyncio.to_thread(server.wait)
    return _texts(identity, prompt, server)


def _server(identity: RequestIdentity, prompt: ServedPrompt) -> ModelServer | None:
    """Return the server of a prompt, asked what it is; None of a prompt without texts."""
    if reuse_of(identity.accelerator) is None:
        return None
    if next(iter(identity.retrieved.texts()), None) is None:
        return None
    server = SERVERS.get(prompt.base_url)
    if server is not None:
        server.ask(prompt.get_models)
    return server


def _texts(
    identity: RequestIdentity, prompt: ServedPrompt, server: ModelServer | None
) -> PromptTexts | None:
    reuse = reuse_of(identity.accelerator)
    if server is None or reuse is None or not server.takes_texts:
        return None
    try:
        located = locate_chunks(
            GenerationInput(prompt.messages), identity.retrieved.texts(), identity.retrieved.asked
        )
        namespace = identity.accelerator.options.namespace
        request = reuse_request_of(located, reuse, namespace=namespace)
    except Exception as error:  # the prompt is sent as it is
        fail_open(identity.accelerator, error, _WHERE)
        return None
    return None if request is None else PromptTexts(server, request)
