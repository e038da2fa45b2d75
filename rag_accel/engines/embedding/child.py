"""Be the process that embeds for another one: ``python -m rag_accel.engines.embedding.child``.

Reads frames from standard input and answers on standard output until the input ends, so it never
outlives its parent. The first frame names the model and the arguments of ``encode``; each further
one brings works or takes some back. What has arrived by the end of a micro-batch joins the next.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

import numpy as np

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.engine import SentenceTransformerEngine
from rag_accel.engines.embedding.frames import read_frame, write_frame
from rag_accel.engines.micro_batches import CPU_LIMITS

#: One micro-batch a step: results leave, and newcomers join, as often as that costs nothing.
_LIMITS = replace(CPU_LIMITS, step=CPU_LIMITS.batch)


class Child:
    """Embed what a reading thread takes in, until the input ends."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source = source
        self._target = target
        self._inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._unfinished: set[WorkId] = set()
        self._threads = 1

    def run(self) -> None:
        """Load the model, say so, and serve."""
        start, _ = read_frame(self._source)
        self._threads = start["threads"]
        _use_threads(self._threads)
        engine = SentenceTransformerEngine(
            start["model"],
            query_kwargs=start["query_kwargs"],
            document_kwargs=start["document_kwargs"],
            max_threads=self._threads,
            reproducible=start["reproducible"],
            limits=_LIMITS,
        )
        write_frame(self._target, {"ready": True})
        threading.Thread(target=self._read, daemon=True).start()
        while self._take_in(engine):
            self._answer(engine.step(StepBudget(None, self._threads)))

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(read_frame(self._source)[0])
        except (EOFError, ValueError, OSError):
            self._inbox.put(None)

    def _take_in(self, engine: SentenceTransformerEngine) -> bool:
        """Submit everything that has arrived; wait only while there is nothing to do."""
        while True:
            try:
                message = self._inbox.get(block=not self._unfinished)
            except Empty:
                return True
            if message is None:
                return False
            if "cancel" in message:
                engine.cancel(message["cancel"])
                self._unfinished.difference_update(message["cancel"])
                continue
            works = [_request(work) for work in message["works"]]
            self._unfinished.update(work.id for work in works)
            engine.submit(works)

    def _answer(self, outputs: Sequence[EngineOutput]) -> None:
        """Send vectors; a work that fails is only named, its owner computes it himself."""
        done = [output for output in outputs if output.kind == "final"]
        failed = [output.id for output in outputs if output.kind == "error"]
        self._unfinished.difference_update(output.id for output in outputs)
        if not done and not failed:
            return
        body = b"".join(np.ascontiguousarray(one.value, np.float32).tobytes() for one in done)
        shapes = [[one.id, *one.value.shape] for one in done]
        write_frame(self._target, {"shapes": shapes, "failed": failed}, body)


def _request(work: dict[str, Any]) -> EngineRequest:
    payload = TextBatch(tuple(work["texts"]), work["role"])
    return EngineRequest(WorkId(work["id"]), "", PrimitiveKind.EMBEDDING, payload)


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def main() -> None:
    """Serve on the standard streams, kept clean of what libraries print."""
    source = os.fdopen(os.dup(0), "rb")
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin.close()
    Child(source, target).run()


if __name__ == "__main__":
    main()
