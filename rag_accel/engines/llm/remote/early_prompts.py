"""Beginnings of prompts that a server is asked for early, so that its prefix cache has them.

A server keeps what it has computed of a prompt, also of one whose connection was closed. So early
work is a completion of one token whose text nobody reads, and a whole prompt that begins alike,
with the same ``cache_salt``, is computed from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import EngineRequest, GenerationInput, Message, PrimitiveKind
from rag_accel.engines.http.endpoints import PROCESS_ENDPOINTS
from rag_accel.engines.llm.remote.servers import SERVERS, is_provider
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.errors import BusyError, ConfigError

#: seconds after a refusal (HTTP 429 or 503) in which a server is sent nothing early
REFUSED_S = 60.0


def check_early(early: Any, vllm: VllmServerOptions, base_urls: Iterable[str], where: str) -> None:
    """Check that these servers may be asked early.

    Raises:
        ConfigError: ``early`` is no truth value; prompts are approximate, whose texts are part of
            their salt; or a server is a provider's, which bills every token.
    """
    if not isinstance(early, bool):
        raise ConfigError(
            "option out of range", where=f"{where}.early", found=repr(early), valid="True, False"
        )
    if not early:
        return
    if vllm.kv_reuse != "exact":
        raise ConfigError(
            "beginnings of approximate prompts cannot be computed early",
            where=f"{where}.early",
            found=f"kv_reuse={vllm.kv_reuse!r}",
            valid="kv_reuse='exact'",
            hint="a server keeps approximate prompts apart by their texts, not known so early",
        )
    if billed := [url for url in base_urls if is_provider(url)]:
        raise ConfigError(
            "early requests to a provider would cost money",
            where=f"{where}.early",
            found=", ".join(billed),
            valid="servers of your own",
            hint="leave out early=True for this provider",
        )


def early_request(request: EngineRequest) -> EngineRequest:
    """Return the request as it is sent: greedy, for one token, never repeated.

    A beginning may end within the system prompt. Some chat templates refuse a prompt without a
    user's message, so an empty one follows: what stands before it has the same tokens.
    """
    payload: GenerationInput = request.payload
    messages = payload.messages
    if not messages or messages[-1].role == "system":
        messages = (*messages, Message("user", ""))
    options = {**payload.options, "temperature": 0}
    prompt = replace(payload, messages=messages, stop=(), max_tokens=1, options=options)
    return replace(request, payload=prompt, stream=False, is_retried=True)


def is_early(request: EngineRequest) -> bool:
    """Tell whether work of a server is early: passes make no other beginnings for one."""
    return request.kind is PrimitiveKind.PARTIAL_PREFILLING


def have_refused(base_urls: Iterable[str]) -> bool:
    """Tell whether one of these servers has refused a request within ``REFUSED_S``."""
    now = MonotonicClock().now()
    found = [SERVERS.get(url) for url in base_urls]
    return any(server is not None and now - server.refused_at < REFUSED_S for server in found)


def require_free(base_url: str, is_busy: bool, now: float) -> None:
    """Return if a server may be asked early.

    Args:
        base_url: of the server.
        is_busy: whether the engine has other work there.
        now: on the clock of ``ModelServer.refused_at``, in seconds.

    Raises:
        BusyError: it has work, calls of a program wait for it or were refused, or it has refused a
            request within ``REFUSED_S``.
    """
    server = SERVERS.get(base_url)
    reasons = [
        ("it has other work", is_busy),
        ("calls of a program are in flight or were refused", PROCESS_ENDPOINTS.holds(base_url)),
        (
            f"it refused a request less than {REFUSED_S:g} s ago",
            server is not None and now - server.refused_at < REFUSED_S,
        ),
    ]
    for reason, holds in reasons:
        if holds:
            raise BusyError("nothing is sent to this server early", where=base_url, found=reason)
