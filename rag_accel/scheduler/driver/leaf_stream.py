"""Waiting for streamed text: in a thread that blocks, or in a task on the caller's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from rag_accel.engine_api import EngineOutput, EngineRequest
from rag_accel.scheduler.driver.leaf import AsyncLeaf, SyncLeaf
from rag_accel.scheduler.driver.text_stream import TextStream
from rag_accel.scheduler.messages import NodeKey

Build = Callable[[NodeKey], EngineRequest]


class SyncStreamLeaf(SyncLeaf):
    """A leaf whose calling thread takes text as it comes, until the primitive has ended."""

    __slots__ = ("_changed", "_text")

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self._text = TextStream()
        self._changed = threading.Condition()

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Hand on an increment of the text."""
        self._text.put(output.value)
        self._wake()

    def take(self) -> list[str]:
        """Return the next text, in pieces; nothing once the primitive has ended and all is taken.

        Ctrl-C interrupts.
        """
        with self._changed:
            while True:
                has_ended = self.signal is not None
                pieces = self._text.take()
                if pieces or has_ended:
                    return pieces
                self._changed.wait()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class AsyncStreamLeaf(AsyncLeaf):
    """A leaf whose task takes text as it comes, until the primitive has ended."""

    __slots__ = ("_changed", "_text")

    def __init__(
        self,
        later: Callable[
            [asyncio.AbstractEventLoop, Callable[[], None], Callable[[], None] | None], None
        ],
        build: Build,
    ) -> None:
        super().__init__(later, build)
        self._text = TextStream()
        self._changed = asyncio.Event()

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Hand on an increment of the text."""
        self._text.put(output.value)
        self._wake()

    async def take(self) -> list[str]:
        """Return the next text, in pieces; nothing once the primitive has ended and all is taken.

        Cancelling the task raises CancelledError here.
        """
        while True:
            self._changed.clear()
            has_ended = self.signal is not None
            pieces = self._text.take()
            if pieces or has_ended:
                return pieces
            await self._changed.wait()

    def _resolve(self) -> None:
        self._changed.set()
