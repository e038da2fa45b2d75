"""The program's own models on vLLM servers, which are told of the retrieved texts of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.engine_api import GenerationInput
from rag_accel.engines.llm.remote.servers import SERVERS, ModelServer
from rag_accel.interception.fallback import fail_open
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.reuse_request import ReuseRequest, ServedReuse
from rag_accel.kv.served_prompts import answered_texts, reuse_request_of, served_report
from rag_accel.recognition.served_models import ServedPrompt

_WHERE = "llm"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of one prompt, for the server that it is sent to."""

    server: ModelServer
    request: ReuseRequest

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the request's body by name."""
        return self.request.fields()

    def report(self, params: object, cached_tokens: int | None) -> Mapping[str, Any] | None:
        """Return what a whole answer says of its making; None where the server did not say."""
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
    reuse = accelerator.options.kv_reuse
    return reuse if reuse in ("full", "fused") else None


def describe(accelerator: Accelerator) -> str | None:
    """Return how a model on a server runs; None where it is a leaf like any other."""
    reuse = reuse_of(accelerator)
    if reuse is None:
        return None
    return (
        f"recognised model on a server: its own methods run; a server of vLLM's is told of"
        f" retrieved texts (kv_reuse is {reuse}, approximate)"
    )


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
