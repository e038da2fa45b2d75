"""The program's own models on vLLM servers, which are told of the retrieved texts of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.adoption.served_models import PromptTexts, ServedPlace, ServedPrompt, ServerHooks
from rag_accel.engine_api import GenerationInput
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.engines.llm.remote.remote_llm import keys_of
from rag_accel.engines.llm.remote.servers import SERVERS, ModelServer
from rag_accel.interception.fallback import fail_open
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.reuse_request import ServedReuse
from rag_accel.kv.served_prompts import reuse_request_of

_WHERE = "llm"
#: why calls of models on servers are not changed
UNCHANGED = (
    "endpoint_limits is off, kv_reuse is exact and no RemoteLLM names its server;"
    " endpoint_limits=True has calls wait for their turn, kv_reuse='full' or 'fused' names texts to"
    " a vLLM server, and Accelerator(llm=RemoteLLM(...)) spreads calls over several"
)


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


def hooks_of(
    identity: RequestIdentity, gate: Callable[[], EndpointGate | None]
) -> ServerHooks | None:
    """Return what a client asks before its calls in one run; None where they are not changed."""
    if not changes(identity.accelerator):
        return None
    return ServerHooks(
        route=partial(_route, identity),
        annotate=partial(_annotate, identity),
        aannotate=partial(_aannotate, identity),
        gate=gate,
    )


def _route(identity: RequestIdentity, prompt: ServedPrompt, name: object) -> ServedPlace | None:
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
        keys = keys_of(located, identity.accelerator.options.namespace)
        return ServedPlace.take(model.placement, model.servers, keys)
    except Exception as error:  # the prompt goes to the program's own server
        fail_open(identity.accelerator, error, _WHERE)
        return None


def _annotate(identity: RequestIdentity, prompt: ServedPrompt) -> PromptTexts | None:
    """Return the texts of a prompt; None where it is sent as it is.

    The first prompt for a server waits for the server's answer to what it is.
    """
    server = _server(identity, prompt)
    if server is not None and not server.is_known:
        server.wait()
    return _texts(identity, prompt, server)


async def _aannotate(identity: RequestIdentity, prompt: ServedPrompt) -> PromptTexts | None:
    """Do as ``_annotate`` without blocking the loop."""
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
    return None if request is None else PromptTexts(request, server.note_answer)
