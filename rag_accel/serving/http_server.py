"""The process that serves: its socket, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from types import FrameType
from typing import Any

import uvicorn

from rag_accel.clock import MonotonicClock
from rag_accel.errors import ConfigError
from rag_accel.serving.app import ServingApp
from rag_accel.serving.connections import ConnectionWatch, WatchedProtocol
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.sync_steps import SyncSteps

_logger = logging.getLogger(__name__)

HEAD_BYTES = 32 * 1024
"""The largest head of a request."""

_IDLE_S = 5
_BACKLOG = 2048
#: beyond the time to drain, for what a stuck thread may hold up
_LAST_S = 10.0


class DrainingServer(uvicorn.Server):
    """uvicorn with watched connections, whose first signal drains and whose second ends at once.

    Args:
        app: what it serves.
        options: the bounds.
        tell: is told the address once connections are taken.
    """

    def __init__(
        self, app: ServingApp, options: ServingOptions, tell: Callable[[str], None]
    ) -> None:
        config = uvicorn.Config(
            app.asgi(),
            http=WatchedProtocol,
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=max(1, round(options.drain_s)),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        super().__init__(config)
        #: the loop that serves, once it runs
        self.loop: asyncio.AbstractEventLoop
        self._app, self._options, self._tell = app, options, tell
        self._last: threading.Timer | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._must_reload = False
        self._watch, self._clock = ConnectionWatch(options), MonotonicClock()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes and what was under way has ended."""
        self.loop = loop = asyncio.get_running_loop()
        loop.set_default_executor(SyncSteps(self._app.turns.most))
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections and tell the address."""
        await super().startup(sockets)
        for opened in sockets or ():
            self._tell(url_of(opened))

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections, ten times a second."""
        connections: Any = self.server_state.connections
        self._watch.sweep(list(connections), self._clock.now())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what is under way end, within the time to drain."""
        self._app.is_draining = True
        bound_s = self._options.drain_s + self._app.shutdown_s + _LAST_S
        # A thread of the program's may be stuck, and the interpreter would wait for it.
        self._last = threading.Timer(bound_s, os._exit, (1,))
        self._last.daemon = True
        self._last.start()
        await super().shutdown(sockets)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends it, and its threads have ended."""
        try:
            with asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
                _run_to_end(runner.get_loop(), self.serve(sockets))
        finally:
            if self._last is not None:
                self._last.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals for the block; unlike uvicorn's, they are not raised again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
        }
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda number, frame: self._reload_soon()
        before = {number: signal.signal(number, handle) for number, handle in handlers.items()}
        try:
            yield
        finally:
            for number, handle in before.items():
                signal.signal(number, handle)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end at once at the second."""
        if self.should_exit:
            os._exit(128 + sig)
        self._app.is_draining = True
        self.should_exit = True

    def _reload_soon(self) -> None:
        # A signal comes in the context of whatever request runs.
        self.loop.call_soon_threadsafe(self._begin_reload, context=Context())

    def _begin_reload(self) -> None:
        self._must_reload = True
        if self._reloading is None or self._reloading.done():
            self._reloading = self.loop.create_task(self._reload())

    async def _reload(self) -> None:
        while self._must_reload:
            self._must_reload = False
            try:
                await self._app.reload_tokens()
            except ConfigError as error:
                _logger.error("tokens stay as they were: %s", error)
            except BaseException as error:  # whatever the program raises
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the loop ends
                    raise
                _logger.error("tokens stay as they were: %r", error, exc_info=error)


def _run_to_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run what serves, whatever of a program's tasks and callbacks would end the loop."""
    task = loop.create_task(work)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            _logger.error("a task of the program raised %r; the server goes on", error)


def open_socket(options: ServingOptions) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the address is not one of this machine, or taken.
    """
    address = (options.host, options.port)
    try:
        family, kind, _, _, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        # The protocol is named, as asyncio turns off Nagle's algorithm, which holds an answer's
        # body back for 40 ms, of such sockets alone.
        opened = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(found)
            opened.listen(_BACKLOG)
        except BaseException:
            opened.close()
            raise
    except OSError as error:
        raise ConfigError(
            "the server cannot listen",
            where=f"{options.host}:{options.port}",
            found=error.strerror or str(error),
            hint="choose another --host or --port",
        ) from None
    opened.setblocking(False)
    return opened


def url_of(opened: socket.socket) -> str:
    """Return the address of a listening socket as clients write it."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: ServingApp, options: ServingOptions, tell: Callable[[str], None]) -> None:
    """Serve until a signal ends it.

    Args:
        app: what is served.
        options: the bounds.
        tell: is told the address once connections are taken.

    Raises:
        ConfigError: the server cannot listen.
    """
    opened = open_socket(options)
    DrainingServer(app, options, tell).run(sockets=[opened])
