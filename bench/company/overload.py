"""An embedder of two emulated devices that is asked for three times as much as it can do in time.

Clients ask for a text each, again as soon as they are answered, and when told to where they were
refused. There are three times as many of them as texts that members can compute within the limit.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from bench.emulated.member import EmulatedMember
from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines.devices.members import guess_tokens
from rag_accel.errors import BusyError
from rag_accel.scheduler.messages import EngineName

SLO_S = 0.5
LATE = 1.2
"""Answers within so many times the limit count as in it."""

OVERLOAD = 3.0
WARM_S, QUICK_S, FULL_S = 4.0, 5.0, 16.0  # seconds before, and of, what is measured
_MAIN, _OTHER = (0.008, 0.02), (0.016, 0.02)  # seconds a text and a step
_MOST_TEXTS = 64
_DIMENSION = 8


@dataclass(frozen=True, slots=True)
class Overload:
    """What clients got while three times too many asked.

    Args:
        admitted_in_limit: share of those admitted that was answered within 1.2 times the limit.
        admitted_of_capacity: answers a second / those of the same members without a limit.
        answers: that were measured under the limit.
        refusals: under the limit, of all clients together.
        worst_s: the longest wait of an admitted text.
        retry_after_s: the median of what refused clients were told.
    """

    admitted_in_limit: float
    admitted_of_capacity: float
    answers: int
    refusals: int
    worst_s: float
    retry_after_s: float


@dataclass(slots=True)
class _Seen:
    """Pairs of when an answer came and how long it took, and what refused clients were told."""

    answers: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    retries: list[float] = field(default_factory=list[float])

    def a_second(self, since: float, until: float) -> float:
        return sum(since <= at < until for at, _ in self.answers) / (until - since)


def overload(quick: bool) -> Overload:
    """Return what clients get under three times overload, in about 20 seconds, or 45 in full."""
    until = WARM_S + (QUICK_S if quick else FULL_S)
    free = _ask(None, until)
    limited = _ask(SLO_S, until)
    waits = [seconds for at, seconds in limited.answers if at >= WARM_S]
    retries = sorted(limited.retries)
    return Overload(
        sum(seconds <= LATE * SLO_S for seconds in waits) / max(1, len(waits)),
        limited.a_second(WARM_S, until) / free.a_second(WARM_S, until),
        len(waits),
        len(retries),
        max(waits, default=0.0),
        retries[len(retries) // 2] if retries else 0.0,
    )


def num_clients() -> int:
    """Return three times as many clients as texts that both members compute within the limit."""
    in_limit = sum((SLO_S - fixed) / a_text for a_text, fixed in (_MAIN, _OTHER))
    return round(OVERLOAD * in_limit)


def _ask(slo_s: float | None, until_s: float) -> _Seen:
    """Return what clients saw, with a limit or without one."""
    members = [
        EmulatedMember(
            _vectors,
            a_text,
            fixed,
            name,
            max_texts=_MOST_TEXTS,
            tokens_per_text=guess_tokens(_text(0)),
        )
        for name, (a_text, fixed) in (("main", _MAIN), ("other", _OTHER))
    ]
    options: dict[str, Any] = {}
    if slo_s is not None:
        options = {"embedding_slo_s": slo_s, "on_full": "raise"}
    with ExitStack() as closing:
        accelerator = Accelerator(embedder=members, **options)
        closing.callback(accelerator.close)
        return asyncio.run(_all_clients(accelerator, until_s))


async def _all_clients(accelerator: Accelerator, until_s: float) -> _Seen:
    seen, numbers, began = _Seen(), count(), time.perf_counter()

    def now() -> float:
        return time.perf_counter() - began

    async def ask_on() -> None:
        while (came := now()) < until_s:
            batch = TextBatch((_text(next(numbers)),))
            work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, batch, 1)
            try:
                await accelerator.leaves.acompute(accelerator.anonymous(), work)
            except BusyError as error:
                again_s = error.retry_after_s or 0.0
                seen.retries.append(again_s)
                if came + again_s >= until_s:
                    return
                await asyncio.sleep(again_s)
            else:
                seen.answers.append((now(), now() - came))

    await asyncio.gather(*(ask_on() for _ in range(num_clients())))
    return seen


def _text(number: int) -> str:
    """Return a text of about 75 tokens, as long as those by which members are compared."""
    return f"question number {number:06d} " + "of the same length " * 15


def _vectors(texts: Sequence[str]) -> Any:
    """Return a vector that depends on nothing but the text: ``[len(texts), 8], float32``."""
    return np.stack(
        [
            np.random.default_rng(zlib.crc32(text.encode())).standard_normal(_DIMENSION)
            for text in texts
        ]
    ).astype(np.float32)
