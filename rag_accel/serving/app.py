"""The endpoints of a served object, as an ASGI application."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.errors import ClosedError, ServedRequestError
from rag_accel.leaves.request_threads import request_threads
from rag_accel.profile.run_page import run_page
from rag_accel.serving.admission import TenantTurns
from rag_accel.serving.chat_answers import completion, completion_events, embeddings
from rag_accel.serving.event_stream import COMMENT_S, EventStream, event
from rag_accel.serving.http_errors import ErrorAnswer, answer_error
from rag_accel.serving.http_metrics import CONTENT_TYPE, HTTPMetrics, metrics_text
from rag_accel.serving.plain_values import as_json, parse_object
from rag_accel.serving.request_body import ClientGoneError, deadline_of, in_time, read_body
from rag_accel.serving.request_guard import RequestGuard
from rag_accel.serving.request_values import (
    chat_request,
    check_model,
    embedding_request,
    program_values,
)
from rag_accel.serving.served import (
    ServedAnswer,
    ServedEmbedder,
    ServedPiece,
    ServedProgram,
    answer_pieces,
    chat_input,
)
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.status_feed import StatusFeed
from rag_accel.serving.sync_steps import RequestSteps
from rag_accel.serving.tenants import MadeTenants, ServedTenants
from rag_accel.serving.tokens import TokenFile
from rag_accel.telemetry.spans import joining_trace

T = TypeVar("T")

CLIENT_GONE = 499
"""The status under which requests are counted whose client has left."""

SMALL_BODY_BYTES = 64 * 1024
"""The largest body that is read on the loop, which answers nobody meanwhile."""

_PAGE_HEADERS = {"cache-control": "no-store", "content-security-policy": "frame-ancestors 'none'"}

Respond = Callable[[Request, str, Send], Awaitable[int]]
"""Answers a request of a tenant and returns the status."""


class ServingApp:
    """The endpoints in front of one object.

    Args:
        tenants: what answers.
        options: the bounds.
        tokens: who may ask; None lets everybody ask as ``options.namespace``.
        clock: measures durations.
    """

    def __init__(
        self,
        tenants: ServedTenants,
        options: ServingOptions,
        tokens: TokenFile | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._tenants, self._options, self._tokens = tenants, options, tokens
        self._clock = clock or MonotonicClock()
        self._created = int(time.time())
        self._status_feed = StatusFeed(f"rag_accel: {tenants.name}")
        self.http = HTTPMetrics()
        # Their own: steps of programs may fill the loop's.
        self._parsers = ThreadPoolExecutor(2, "rag-accel-body")
        #: set once the server stops: nothing more is taken
        self.is_draining = False
        self._is_reloading = False
        #: tenants that no token names and whose requests are still under way
        self._unnamed: set[str] = set()
        made = tenants.add((options.namespace,) if tokens is None else tokens.tenants)
        self._preparing = threading.Thread(
            target=made.prepare, args=(options.prepare_timeout_s,), name="rag-accel-prepare"
        )
        taken = [on.options.max_requests for on in tenants.accelerators.values()]
        self.turns = TenantTurns(
            min([options.max_requests, *taken]), options.max_requests_per_tenant, self._clock
        )

    def asgi(self) -> Starlette:
        """Return the application; its shutdown closes the accelerators that serve it."""
        posts: dict[str, Respond] = {}
        first = self._tenants.of(self._any_tenant())
        if isinstance(first, ServedEmbedder):
            posts["/v1/embeddings"] = self._embeddings
        else:
            posts |= {"/invoke": self._invoke, "/stream": self._stream}
            if chat_input(first) is not None:
                posts["/v1/chat/completions"] = self._chat
        gets: dict[str, Respond] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._one_model,
            "/metrics": self._metrics,
            "/status/events": self._status,
        }
        answered = {"POST": posts, "GET": gets}
        routes = [
            Route(path, _Endpoint(self, path, respond), methods=[method])
            for method, responses in answered.items()
            for path, respond in responses.items()
        ]
        routes.append(Route("/healthz", self._healthz, methods=["GET"]))
        routes.append(Route("/status", self._status_page, methods=["GET"]))
        app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _no_such_route},
            middleware=[Middleware(RequestGuard, allowed=self._allowed_hosts())],
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # a redirect would name the host that a client claims
        return app

    def _allowed_hosts(self) -> tuple[str, ...] | None:
        """Return the hosts besides those of loopback; None for any, where tokens decide alone."""
        allowed = self._options.allow_hosts
        return None if self._tokens is not None and not allowed else allowed

    @property
    def shutdown_s(self) -> float:
        """Return how long closing the accelerators may take, in seconds."""
        accelerators = self._tenants.accelerators.values()
        return max((on.options.shutdown_s for on in accelerators), default=0.0)

    async def reload_tokens(self) -> None:
        """Read the tokens again, one call at a time; requests go on meanwhile.

        Tenants that no token names any more are dropped once their last request has ended.
        Raises what the file or the object raises, and then the tokens from before stay.
        """
        if self._tokens is None:
            return
        self._is_reloading = True  # nothing is dropped that may be named again
        try:
            found = await asyncio.to_thread(self._read_tokens, self._tokens)
            if isinstance(found, BaseException):
                raise found
            tokens, made = found
            self._tenants.put(made)
            self._tokens.use(tokens)
        finally:
            self._is_reloading = False
            self._unnamed = set(self._tenants.names).difference(self._tokens.tenants)
            for namespace in self._unnamed.copy():
                self._drop_idle(namespace)

    def _read_tokens(self, file: TokenFile) -> tuple[dict[bytes, str], MadeTenants] | BaseException:
        try:
            tokens = file.read()
            return tokens, self._tenants.make(sorted(set(tokens.values())))
        except BaseException as error:  # one of the program's could end the thread, or the loop
            return error

    def _drop_idle(self, namespace: str) -> None:
        """Forget a tenant that no token names if no request of it is under way."""
        is_idle = not self.http.in_flight[namespace]
        if namespace in self._unnamed and is_idle and not self._is_reloading:
            self._unnamed.remove(namespace)
            accelerator = self._tenants.drop(namespace)
            self.http.forget(namespace)
            self.turns.forget(namespace)
            if accelerator is not None:
                asyncio.get_running_loop().run_in_executor(None, accelerator.close)

    def _leave(self, namespace: str) -> None:
        self.http.leave(namespace)
        self._drop_idle(namespace)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        if self._options.prepare_timeout_s > 0:
            self._preparing.start()
        try:
            yield
        finally:
            self._parsers.shutdown(wait=False)
            await asyncio.to_thread(self._tenants.close)

    def wait_prepared(self, timeout_s: float | None) -> bool:
        """Wait for the models that are prepared; tell whether that is over, or was not asked."""
        if self._preparing.ident is None:
            return True
        self._preparing.join(timeout_s)
        return not self._preparing.is_alive()

    def _any_tenant(self) -> str:
        return self._options.namespace if self._tokens is None else self._tokens.tenants[0]

    async def serve(
        self, route: str, respond: Respond, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one request, or say why not."""
        request = Request(scope, receive)
        try:
            namespace = self._admit(request)
        except Exception as error:
            await _send_error(answer_error(error), scope, receive, send)
            return
        began, status, has_begun = self._clock.now(), 500, False
        steps = RequestSteps()
        context = request_threads.set(steps)

        async def noting_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self.http.begin(namespace)
        try:
            with joining_trace(request.headers if self._has_spans(namespace) else None):
                status = await respond(request, namespace, noting_send)
        except ClientGoneError:
            status = CLIENT_GONE
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            is_over = is_cancelled and self.is_draining  # the time to drain
            answer = answer_error(_stopping() if is_over else error)
            status = answer.status
            if not has_begun:
                await _send_error(answer, scope, receive, send)
            if has_begun or is_cancelled:
                raise  # only ending the connection tells that the answer is not whole
        finally:
            request_threads.reset(context)
            self.http.end(namespace, route, status, self._clock.now() - began)
            steps.when_ended(lambda: self._leave(namespace))

    def _has_spans(self, namespace: str) -> bool:
        accelerator = self._tenants.of(namespace).accelerator
        return accelerator is not None and accelerator.options.telemetry != "off"

    def _admit(self, request: Request) -> str:
        """Return the tenant who asks."""
        if self.is_draining:
            raise _stopping()
        if self._tokens is None:
            return self._options.namespace
        given = request.headers.getlist("authorization")
        if len(given) > 1:  # a proxy may have checked the other one
            raise ServedRequestError("there are several", where="Authorization", valid="one")
        kind, _, token = "".join(given).partition(" ")
        tenant = self._tokens.tenant_of(token.strip()) if kind.lower() == "bearer" else None
        if tenant is None:
            raise ServedRequestError(
                "the request has no valid token",
                status=401,
                where="Authorization",
                valid="Bearer TOKEN",
            )
        return tenant

    async def _body(self, request: Request, namespace: str) -> dict[str, Any]:
        body = await read_body(request, self._options.max_body_bytes)
        # A refused request is known by it when it comes back.
        asked = f"{namespace}\n{request.scope['path']}\n".encode()
        request.state.key = hashlib.blake2b(asked + body, digest_size=16).digest()
        request.state.turns = self.turns.of(namespace)
        if len(body) <= SMALL_BODY_BYTES:
            return parse_object(body)
        return await asyncio.get_running_loop().run_in_executor(self._parsers, parse_object, body)

    async def _in_turn(
        self, request: Request, work: Callable[[float | None], Coroutine[Any, Any, T]]
    ) -> T:
        """Return what the work returns, once it is its turn, within the request's deadline."""
        deadline_s = deadline_of(request, self._options.deadline_s)
        until = None if deadline_s is None else self._clock.now() + deadline_s

        async def wait_and_work() -> T:
            async with request.state.turns.turn(request.state.key):
                left_s = None if until is None else max(0.0, until - self._clock.now())
                return await work(left_s)

        return await in_time(request, deadline_s, wait_and_work())

    async def _invoke(self, request: Request, namespace: str, send: Send) -> int:
        program = self._program(namespace)
        values = program_values(await self._body(request, namespace), program.inputs)
        answer = await self._in_turn(request, lambda left_s: program.answer(values, left_s))
        return await _send_json(_told(answer), request, send)

    async def _stream(self, request: Request, namespace: str, send: Send) -> int:
        program = self._program(namespace)
        values = program_values(await self._body(request, namespace), program.inputs)
        return await self._send_events(
            request,
            EventStream(send),
            lambda left_s: _piece_events(program.stream(values, left_s)),
            "error",
        )

    async def _chat(self, request: Request, namespace: str, send: Send) -> int:
        program = self._program(namespace)
        name = self._tenants.name
        chat = chat_request(await self._body(request, namespace), program, name)
        if not chat.is_stream:
            answer = await self._in_turn(
                request, lambda left_s: program.answer(chat.values, left_s)
            )
            return await _send_json(completion(answer, name), request, send, chat.ignored)
        stream = EventStream(send, _ignored_headers(chat.ignored), COMMENT_S)
        return await self._send_events(
            request,
            stream,
            lambda left_s: completion_events(
                answer_pieces(program, chat.values, left_s), name, chat.with_usage
            ),
        )

    async def _embeddings(self, request: Request, namespace: str, send: Send) -> int:
        embedder = cast("ServedEmbedder", self._tenants.of(namespace))
        name = self._tenants.name
        asked = embedding_request(await self._body(request, namespace), name)
        given = await self._in_turn(request, lambda _: _embed(embedder, asked.texts, asked.role))
        answer = embeddings(given, len(asked.texts), name, asked.is_base64)
        return await _send_json(answer, request, send, asked.ignored)

    async def _models(self, request: Request, namespace: str, send: Send) -> int:
        return await _send_json({"object": "list", "data": [self._model()]}, request, send)

    async def _one_model(self, request: Request, namespace: str, send: Send) -> int:
        check_model(request.path_params["name"], self._tenants.name)
        return await _send_json(self._model(), request, send)

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._tenants.name,
            "object": "model",
            "created": self._created,
            "owned_by": "rag-accel",
        }

    async def _metrics(self, request: Request, namespace: str, send: Send) -> int:
        accelerator = self._tenants.of(namespace).accelerator
        waiting = self.turns.of(namespace).waiting
        text = metrics_text(self.http, waiting, accelerator, namespace)
        response = Response(text, media_type=CONTENT_TYPE)
        await response(request.scope, request.receive, send)
        return 200

    async def _status(self, request: Request, namespace: str, send: Send) -> int:
        turns = self.turns.of(namespace)

        def describe() -> str:
            # The one who watches is under way, too.
            under_way = self.http.in_flight[namespace]
            return f"{under_way} requests under way, {turns.waiting} of them wait for a place"

        events = self._status_feed.events(
            namespace,
            lambda: self._tenants.of(namespace).accelerator,
            describe,
            lambda: not self.is_draining and namespace not in self._unnamed,
        )
        await in_time(request, None, EventStream(send).run(events))
        return 200

    async def _status_page(self, request: Request) -> Response:
        """Return the page; open to everybody, as it has nothing of any tenant."""
        return Response(run_page(), media_type="text/html", headers=_PAGE_HEADERS)

    async def _healthz(self, request: Request) -> Response:
        """Tell whether requests are taken; open to everybody, so it names no tenant."""
        if self.is_draining:
            return JSONResponse({"state": "draining"}, 503, {"Connection": "close"})
        found = [accelerator.health() for accelerator in self._tenants.accelerators.values()]
        bad = next((health for health in found if not health.is_ready), None)
        if bad is None and self._preparing.is_alive():  # between two accelerators
            return JSONResponse({"state": "preparing"}, 503)
        if bad is None:
            return JSONResponse({"state": "ready"})
        shown = {"state": bad.state} if self._tokens else {"state": bad.state, "why": bad.why}
        return JSONResponse(shown, 503)

    def _program(self, namespace: str) -> ServedProgram:
        return cast("ServedProgram", self._tenants.of(namespace))

    async def _send_events(
        self,
        request: Request,
        stream: EventStream,
        events: Callable[[float | None], AsyncIterator[bytes]],
        error_name: str | None = None,
    ) -> int:
        try:
            await self._in_turn(request, lambda left_s: stream.run(events(left_s)))
        except ClientGoneError:
            raise
        except Exception as error:
            if not stream.has_begun:
                raise
            answer = answer_error(error)
            await stream.fail(event(answer.body, error_name))
            return answer.status
        return 200


@dataclass(frozen=True)
class _Endpoint:
    """One route, as the ASGI application that Starlette calls."""

    app: ServingApp
    path: str
    respond: Respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app.serve(self.path, self.respond, scope, receive, send)


def _told(answer: ServedAnswer) -> dict[str, Any]:
    """Return an answer as the JSON object of ``/invoke``; counts only where there are any."""
    counts = {"retries": answer.retries, "fallbacks": answer.fallbacks}
    return {
        "output": as_json(answer.output),
        **{name: dict(by_stage) for name, by_stage in counts.items() if by_stage},
    }


async def _embed(embedder: ServedEmbedder, texts: list[str], role: Any) -> Any:
    return await embedder.embed(texts, role)


async def _piece_events(pieces: AsyncIterator[ServedPiece]) -> AsyncIterator[bytes]:
    closing: Any = pieces
    async with aclosing(closing):
        async for piece in pieces:
            if piece.text:
                yield event({"text": piece.text})
            elif piece.step is not None:
                yield event({"step": as_json(piece.step)})


async def _send_json(
    value: Any, request: Request, send: Send, ignored: tuple[str, ...] = ()
) -> int:
    response = JSONResponse(value)
    response.raw_headers += _ignored_headers(ignored)
    await response(request.scope, request.receive, send)
    return 200


def _ignored_headers(ignored: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    return [(b"x-rag-accel-ignored", ", ".join(ignored).encode())] if ignored else []


async def _send_error(answer: ErrorAnswer, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(answer.body, answer.status, answer.headers)(scope, receive, send)


def _stopping() -> ClosedError:
    return ClosedError("the server is stopping", hint="ask another one")


async def _no_such_route(_: Request, error: Exception) -> Response:
    found = cast("HTTPException", error)
    what = {404: "there is no such path", 405: "this path has no such method"}
    refused = ServedRequestError(
        what.get(found.status_code, found.detail), status=found.status_code
    )
    return JSONResponse(answer_error(refused).body, found.status_code, found.headers)
