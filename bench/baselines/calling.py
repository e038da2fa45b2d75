"""Serve single texts of many callers by a runtime: one by one, a few at a time, or in batches.

A user writes these in a few lines each; none knows anything of ours.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Protocol

from bench.baselines.embedding_runtimes import Runtime

Work = tuple[str, Future[list[float]]]


class TextEmbedder(Protocol):
    """Embed one text, from a thread or from a task."""

    def invoke(self, text: str) -> list[float]:
        """Return its vector."""
        ...

    async def ainvoke(self, text: str) -> list[float]:
        """Return its vector."""
        ...


class OneByOne:
    """Run each text by itself, where its caller is; tasks use the loop's executor, as LangChain's.

    Args:
        runtime: what computes.
        most: how many may compute at once; None for all who come.
    """

    def __init__(self, runtime: Runtime, most: int | None = None) -> None:
        self._runtime = runtime
        self._bound = nullcontext() if most is None else threading.BoundedSemaphore(most)

    def invoke(self, text: str) -> list[float]:
        """Return its vector."""
        with self._bound:
            return self._runtime.embed([text])[0].tolist()

    async def ainvoke(self, text: str) -> list[float]:
        """Return its vector."""
        return await asyncio.get_running_loop().run_in_executor(None, self.invoke, text)

    def close(self) -> None:
        """Have nothing to end."""


class MicroBatcher:
    """Let ``workers`` threads embed whatever waits.

    Args:
        runtime: what computes.
        most: texts that a worker takes at once.
        workers: how many take at the same time.
        part: texts of one batch.
        by_length: whether what was taken is cut into batches by length.
    """

    def __init__(
        self, runtime: Runtime, most: int, workers: int, part: int, by_length: bool = True
    ) -> None:
        self._runtime = runtime
        self._most = most
        self._part = part
        self._by_length = by_length
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def invoke(self, text: str) -> list[float]:
        """Return its vector."""
        return self._put(text).result()

    async def ainvoke(self, text: str) -> list[float]:
        """Return its vector."""
        return await asyncio.wrap_future(self._put(text))

    def close(self) -> None:
        """End the workers."""
        for _ in self._workers:
            self._waiting.put(None)
        for worker in self._workers:
            worker.join()

    def _put(self, text: str) -> Future[list[float]]:
        found: Future[list[float]] = Future()
        self._waiting.put((text, found))
        return found

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken = [first, *self._rest()]
            if self._by_length:
                taken.sort(key=lambda work: len(work[0]))
            for start in range(0, len(taken), self._part):
                self._embed(taken[start : start + self._part])

    def _rest(self) -> list[Work]:
        taken: list[Work] = []
        while len(taken) < self._most - 1:
            try:
                work = self._waiting.get_nowait()
            except queue.Empty:
                break
            if work is None:
                self._waiting.put(None)
                break
            taken.append(work)
        return taken

    def _embed(self, works: Sequence[Work]) -> None:
        try:
            vectors = self._runtime.embed([text for text, _ in works])
        except BaseException as error:
            for _, found in works:
                found.set_exception(error)
            return
        for (_, found), vector in zip(works, vectors, strict=True):
            found.set_result(vector.tolist())
