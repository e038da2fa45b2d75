"""Names by which clients may call the server, against DNS rebinding.

A page of a stranger's can have its own name resolve to 127.0.0.1, and a browser then takes the
server for a part of that page. The page cannot change the ``Host`` that the browser sends.
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

_MISDIRECTED = 421


class KnownHosts:
    """An application that answers only to known names, with status 421 to others.

    Args:
        app: what answers.
        allowed: names besides those of loopback.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._known = frozenset({*LOOPBACK_HOSTS, *map(str.lower, allowed)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse the host; no body is read before."""
        if scope["type"] == "http":
            given = Headers(scope=scope).getlist("host")
            if len(given) != 1 or host_name(given[0]) not in self._known:
                await _refuse(", ".join(given), scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refuse(found: str, scope: Scope, receive: Receive, send: Send) -> None:
    answer = answer_error(
        ServedRequestError(
            "this server is not known by that name",
            status=_MISDIRECTED,
            where="Host",
            found=repr(found[:80]),
            valid=", ".join(LOOPBACK_HOSTS),
            hint="whoever runs it can allow a name with --allow-host",
        )
    )
    response = JSONResponse(answer.body, answer.status, answer.headers)
    await response(scope, receive, send)
