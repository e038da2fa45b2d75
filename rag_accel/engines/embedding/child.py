"""Be the process that embeds for another one: ``python -m rag_accel.engines.embedding.child``.

Reads frames from standard input and answers on standard output until the input ends, so it never
outlives its parent. The first frame names the model's folder and the arguments of ``encode``.
"""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO

import numpy as np

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines.embedding.engine import SentenceTransformerEngine
from rag_accel.engines.embedding.frames import read_frame, write_frame


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Load the model, say so, and embed until ``source`` ends."""
    start, _ = read_frame(source)
    engine = SentenceTransformerEngine(
        start["model"],
        query_kwargs=start["query_kwargs"],
        document_kwargs=start["document_kwargs"],
        max_threads=start["max_threads"],
        reproducible=start["reproducible"],
    )
    write_frame(target, {"ready": True})
    while True:
        try:
            asked, _ = read_frame(source)
        except EOFError:
            return
        header, body = _answer(engine, asked)
        write_frame(target, header, body)


def _answer(engine: SentenceTransformerEngine, asked: dict[str, Any]) -> tuple[Any, bytes]:
    """Embed the works of one step; a work that fails is only named, its owner retries it."""
    _use_threads(asked["threads"])
    engine.submit(
        [
            EngineRequest(
                WorkId(str(place)),
                "",
                PrimitiveKind.EMBEDDING,
                TextBatch(tuple(work["texts"]), work["role"]),
            )
            for place, work in enumerate(asked["works"])
        ]
    )
    vectors: dict[int, Any] = {}
    failed: list[int] = []
    while len(vectors) + len(failed) < len(asked["works"]):
        for output in engine.step(StepBudget(None, asked["threads"])):
            if output.kind == "final":
                vectors[int(output.id)] = output.value
            elif output.kind == "error":
                failed.append(int(output.id))
    ordered = [vectors[place] for place in sorted(vectors)]
    body = np.concatenate(ordered).astype(np.float32).tobytes() if ordered else b""
    shapes = {str(place): list(vectors[place].shape) for place in sorted(vectors)}
    return {"shapes": shapes, "failed": failed}, body


def _use_threads(threads: int) -> None:
    import torch

    if threads > 0 and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def main() -> None:
    """Serve on the standard streams, kept clean of what libraries print."""
    source = os.fdopen(os.dup(0), "rb")
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin.close()
    serve(source, target)


if __name__ == "__main__":
    main()
