"""Queues of two devices in virtual time: who answers what when, and who says BUSY.

A device is a line over tokens and computes one batch at a time. Everything that happens at one
moment is told to a system before a device begins anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from bench.baselines.windve import ConvergingQueue, Device, QueueManager
from rag_accel.engine_api import LatencyModel, WorkId
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberBatch, MemberSpec

DEVICES: tuple[Device, Device] = ("main", "auxiliary")

_MOST_TEXTS = 4096  # of a step: the lines are straight as far as a limit lets them go


@dataclass(frozen=True, slots=True)
class VirtualText:
    """A query of one text.

    Args:
        at: when it comes.
        tokens: how long it is.
    """

    at: float
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A batch that a device has begun.

    Args:
        device: which one.
        tokens: of all its texts.
        batch: what the system called it.
    """

    device: Device
    tokens: int
    batch: Any


class VirtualSystem(Protocol):
    """A system of queues that is played with."""

    def put(self, number: int, text: VirtualText) -> bool:
        """Take a text; False says BUSY."""
        ...

    def begin(self, now: float) -> list[Begun]:
        """Return what devices that are free begin."""
        ...

    def end(self, begun: Begun, seconds: float, now: float) -> Sequence[int]:
        """Take a batch back; return the numbers of the texts that have ended."""
        ...

    def look_again_at(self, now: float) -> float | None:
        """Return when ``begin`` is to be called though nothing has happened."""
        ...


class BoundedQueues:
    """WindVE's queues, or one queue for both devices, as a system.

    Args:
        queues: the queues.
    """

    def __init__(self, queues: QueueManager[tuple[int, int]] | ConvergingQueue[tuple[int, int]]):
        self._queues = queues
        self._free = set(DEVICES)

    def put(self, number: int, text: VirtualText) -> bool:
        """Queue a text where there is room."""
        return self._queues.put((number, text.tokens)) != "BUSY"

    def begin(self, now: float) -> list[Begun]:
        """Let each free device take its batch."""
        begun: list[Begun] = []
        for device in DEVICES:
            batch = self._queues.take(device) if device in self._free else []
            if batch:
                self._free.discard(device)
                begun.append(Begun(device, sum(tokens for _, tokens in batch), batch))
        return begun

    def end(self, begun: Begun, seconds: float, now: float) -> Sequence[int]:
        """Free the places of a batch."""
        self._free.add(begun.device)
        self._queues.end(begun.device, begun.batch)
        return [number for number, _ in begun.batch]

    def look_again_at(self, now: float) -> float | None:
        """Return None: only events change anything."""
        return None


class PlacedTexts:
    """The placement of a device group as a system, driven as the group drives it.

    Args:
        lines: seconds of each device over tokens, the preferred one first.
        slo_s: by when a text should have ended.
    """

    def __init__(self, lines: Sequence[LatencyModel], slo_s: float) -> None:
        specs = [
            MemberSpec(
                device,
                line.per_item_s,
                line.base_s,
                max_texts=_MOST_TEXTS,
                max_tokens=512 * _MOST_TEXTS,
                max_threads=int(device == "auxiliary"),
            )
            for device, line in zip(DEVICES, lines, strict=False)
        ]
        self._placement = Placement(specs, slo_s)

    def put(self, number: int, text: VirtualText) -> bool:
        """Queue a text; nothing is refused."""
        self._placement.add(WorkId(str(number)), [text.tokens], text.at, request=str(number))
        return True

    def begin(self, now: float) -> list[Begun]:
        """Let free members take what they should."""
        batches = self._placement.bind(now)
        return [Begun(_device(batch), batch.cost, batch) for batch in batches]

    def end(self, begun: Begun, seconds: float, now: float) -> Sequence[int]:
        """Learn from a step."""
        return [int(piece.work) for piece in self._placement.ended(begun.batch, seconds, now)]

    def look_again_at(self, now: float) -> float | None:
        """Return when a free member is to be looked at again."""
        return self._placement.look_again_at(now)


def play(
    texts: Sequence[VirtualText], system: VirtualSystem, lines: Sequence[LatencyModel]
) -> list[float | None]:
    """Return the seconds from each text's arrival to its end; None where it was refused.

    Args:
        texts: in the order in which they come.
        system: takes them.
        lines: seconds of each device over tokens.
    """
    speed = dict(zip(DEVICES, lines, strict=False))
    seconds: list[float | None] = [None] * len(texts)
    numbers = count()
    ends: list[tuple[float, int, float, Begun]] = []
    coming = 0
    again: float | None = None
    while True:
        times = [texts[coming].at] if coming < len(texts) else []
        times += [ends[0][0]] if ends else []
        times += [] if again is None else [again]
        if not times:
            return seconds
        now = min(times)
        while coming < len(texts) and texts[coming].at <= now:
            system.put(coming, texts[coming])
            coming += 1
        while ends and ends[0][0] <= now:
            _, _, took, begun = heapq.heappop(ends)
            for number in system.end(begun, took, now):
                seconds[number] = now - texts[number].at
        for begun in system.begin(now):
            took = speed[begun.device].predict_s(begun.tokens)
            heapq.heappush(ends, (now + took, next(numbers), took, begun))
        again = system.look_again_at(now)


def _device(batch: MemberBatch) -> Device:
    return "main" if batch.member == "main" else "auxiliary"
