"""Serve single texts, or other items, of many callers: one by one, a few at a time, or in batches.

A user writes these in a few lines each; none knows anything of ours.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Protocol

from bench.baselines.embedding_runtimes import Runtime

Work = tuple[Any, Future[Any]]


class TextEmbedder(Protocol):
    """An embedder of one text, called from a thread or from a task."""

    def invoke(self, text: str) -> list[float]:
        """Return its vector."""
        ...

    async def ainvoke(self, text: str) -> list[float]:
        """Return its vector."""
        ...


class OneByOne:
    """Each text by itself, where its caller is; tasks use the loop's executor, as LangChain's.

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


class Batcher:
    """``workers`` threads that do whatever waits, many items in one call.

    Args:
        run: returns what is made of each of several items.
        most: items that a worker takes at once.
        workers: how many take at the same time.
        part: items of one call.
        order: what items are sorted by before they are cut into calls.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        most: int,
        workers: int = 1,
        part: int | None = None,
        order: Callable[[Any], Any] | None = None,
    ) -> None:
        self._run = run
        self._most = most
        self._part = part or most
        self._order = order
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def invoke(self, item: Any) -> Any:
        """Return what is made of an item."""
        return self._put(item).result()

    async def ainvoke(self, item: Any) -> Any:
        """Return what is made of an item."""
        return await asyncio.wrap_future(self._put(item))

    def close(self) -> None:
        """End the workers."""
        for _ in self._workers:
            self._waiting.put(None)
        for worker in self._workers:
            worker.join()

    def _put(self, item: Any) -> Future[Any]:
        found: Future[Any] = Future()
        self._waiting.put((item, found))
        return found

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken = [first, *self._rest()]
            order = self._order
            if order is not None:
                taken.sort(key=lambda work: order(work[0]))
            for start in range(0, len(taken), self._part):
                self._call(taken[start : start + self._part])

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

    def _call(self, work_items: Sequence[Work]) -> None:
        try:
            values = self._run([item for item, _ in work_items])
        except BaseException as error:
            for _, found in work_items:
                found.set_exception(error)
            return
        for (_, found), value in zip(work_items, values, strict=True):
            found.set_result(value)


class MicroBatcher(Batcher):
    """``workers`` threads that embed whatever waits.

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
        def embed(texts: list[str]) -> list[list[float]]:
            return [vector.tolist() for vector in runtime.embed(texts)]

        super().__init__(embed, most, workers, part, len if by_length else None)
