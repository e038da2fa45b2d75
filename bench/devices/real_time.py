"""The device group in real time: an emulated main device beside MiniLM on this machine's cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.emulated.member import EmulatedMember
from rag_accel.accelerator import Accelerator, Work
from rag_accel.accelerator.measured_members import fit_latency
from rag_accel.engine_api import LatencyModel, PrimitiveKind, TextBatch
from rag_accel.engines import SentenceTransformerEngine
from rag_accel.engines.devices.fidelity import probe_texts
from rag_accel.engines.devices.members import EngineMember
from rag_accel.scheduler.messages import EngineName

MOST_TEXTS = 4096
_WORDS = [
    f"{first}{second}"
    for first in ("data", "work", "book", "back", "key")
    for second in ("base", "shop", "mark", "board", "word")
]
_TEXT_WORDS = 60  # about 75 tokens


def texts_of(number: int) -> tuple[str, ...]:
    """Return so many different texts of about 75 tokens."""
    return tuple(
        " ".join(
            _WORDS[(row * 7 + place * (row % 11 + 1)) % len(_WORDS)] for place in range(_TEXT_WORDS)
        )
        + f" {row}"
        for row in range(number)
    )


@dataclass(frozen=True, slots=True)
class Answers:
    """What callers who came at once got.

    Args:
        seconds: from their arrival to each one's end.
        vectors: ``[callers, dim], float32``, in their order.
    """

    seconds: tuple[float, ...]
    vectors: Any


def cpu_line(engine: SentenceTransformerEngine, threads: int, largest: int) -> LatencyModel:
    """Return the fitted seconds of a batch over texts on this machine's cores."""
    member, texts, points = EngineMember(engine), texts_of(largest), list[tuple[int, float]]()
    sizes = (max(1, largest // 4), max(2, largest // 2), max(3, largest))
    for items in (sizes[-1], *sizes):  # the first warms up
        runs: list[float] = []
        for _ in range(3):
            began = time.perf_counter()
            member.embed(texts[:items], "query", threads)
            runs.append(time.perf_counter() - began)
        points.append((items, min(runs)))
    return fit_latency(points[1:])


def emulated_main(
    engine: SentenceTransformerEngine, line: LatencyModel, texts: Sequence[str]
) -> EmulatedMember:
    """Return a device of a line over texts of equal length, with the model's own vectors."""
    known = tuple(dict.fromkeys((*texts, *probe_texts())))
    vectors = np.asarray(engine.model.encode(list(known)), dtype=np.float32)
    tokens = [engine.estimate(text) for text in texts]
    return EmulatedMember(
        dict(zip(known, vectors, strict=True)),
        line.per_item_s,
        line.base_s,
        max_texts=MOST_TEXTS,
        tokens_per_text=sum(tokens) / len(tokens),
        estimate=engine.estimate,
    )


def ask_at_once(accelerator: Accelerator, texts: Sequence[str]) -> Answers:
    """Let one task for each text ask for its vector, all at once."""

    async def ask(text: str, began: float) -> tuple[float, Any]:
        vectors = await accelerator.leaves.acompute(accelerator.anonymous(), _work((text,)))
        return time.perf_counter() - began, vectors[0]

    async def ask_all() -> list[tuple[float, Any]]:
        began = time.perf_counter()
        return await asyncio.gather(*(ask(text, began) for text in texts))

    found = asyncio.run(ask_all())
    return Answers(tuple(seconds for seconds, _ in found), np.stack([one for _, one in found]))


def embed_all(accelerator: Accelerator, texts: Sequence[str]) -> float:
    """Return the seconds of one call with all texts."""
    began = time.perf_counter()
    accelerator.leaves.compute(accelerator.anonymous(), _work(tuple(texts)))
    return time.perf_counter() - began


def _work(texts: tuple[str, ...]) -> Work:
    batch = TextBatch(texts)
    return Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, batch, len(texts))
