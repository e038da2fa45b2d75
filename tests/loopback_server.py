"""Run an aiohttp application on a loopback port, in a thread of its own, until it is closed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from aiohttp import web

from rag_accel.engines.http.loop_thread import LoopThread


class LoopbackServer(ABC):
    """Serve from ``with`` on until its end, or ``close``.

    Attributes:
        base_url: such as ``http://127.0.0.1:1234/v1``, once it serves.
    """

    def __init__(self) -> None:
        self.base_url = ""
        self._thread = LoopThread(type(self).__name__)
        self._runner: web.AppRunner | None = None
        self._not_ours: set[asyncio.Task[object]] = set()

    @abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Say what answers below ``/v1``."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.base_url = self._thread.call(self._listen()).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop all connections and end the thread; idempotent."""
        if self._runner is not None:
            self._thread.call(self._end(self._runner)).result()
            self._runner = None
        self._thread.close()

    async def _end(self, runner: web.AppRunner) -> None:
        transports = self._transports(runner)
        await runner.cleanup()
        # A connection that was accepted meanwhile is known to nobody yet, and one that is being
        # closed takes another turn of the loop.
        rest = asyncio.all_tasks() - self._not_ours - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=1.0)
        if runner.server is not None:
            transports += self._transports(runner)
            await runner.server.shutdown(0.01)
        # One whose client does not read is closed only once all is sent, which is never.
        for transport in transports:
            transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)

    def _transports(self, runner: web.AppRunner) -> list[asyncio.Transport]:
        connections = [] if runner.server is None else runner.server.connections
        return [one.transport for one in connections if one.transport is not None]

    async def _listen(self) -> str:
        self._not_ours = asyncio.all_tasks()  # the loop's own, which lives as long as the loop
        app = web.Application()
        self.add_routes(app.router)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
