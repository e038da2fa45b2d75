"""Requests that are refused whatever they ask for: to unknown hosts, or of ambiguous length.

A page of a stranger's can have its own name resolve to 127.0.0.1, and a browser then takes the
server for a part of that page (DNS rebinding). It cannot change the ``Host`` that the browser
sends. A request with a length and with chunks ends elsewhere for a proxy that believes the length,
so that what follows would be another client's request (RFC 9112, section 6.3).
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rag_accel.errors import ServedRequestError
from rag_accel.serving.http_errors import answer_error
from rag_accel.serving.serving_options import host_name

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine in a ``Host`` header."""

_BAD, _MISDIRECTED = 400, 421


class RequestGuard:
    """An application that lets pass only requests to known hosts, whose end is beyond doubt.

    Args:
        app: what answers them.
        allowed: hosts besides those of loopback; None lets any pass.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] | None) -> None:
        self._app = app
        hosts = () if allowed is None else (*LOOPBACK_HOSTS, *map(str.lower, allowed))
        self._hosts, self._takes_all = frozenset(hosts), allowed is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it; no body is read before."""
        refused = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        answer = answer_error(refused)
        # Nothing else is read from this connection.
        headers = {**answer.headers, "Connection": "close"}
        await JSONResponse(answer.body, answer.status, headers)(scope, receive, send)

    def _refusal(self, headers: Headers) -> ServedRequestError | None:
        if "content-length" in headers and "transfer-encoding" in headers:
            return ServedRequestError(
                "the request has a length and chunks",
                status=_BAD,
                valid="Content-Length, or Transfer-Encoding: chunked",
            )
        hosts = headers.getlist("host")
        if self._takes_all or (len(hosts) == 1 and host_name(hosts[0]) in self._hosts):
            return None
        return ServedRequestError(
            "this server is not known by that name",
            status=_MISDIRECTED,
            where="Host",
            found=repr(", ".join(hosts)[:80]),
            valid=", ".join(LOOPBACK_HOSTS),
            hint="whoever runs it can allow a name with --allow-host",
        )
