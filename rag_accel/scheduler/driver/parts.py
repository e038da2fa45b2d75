"""Work handed to an engine in parts, whose results are put together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rag_accel.engine_api import EngineRequest, Provisional, RerankBatch, WorkId
from rag_accel.errors import SchedulingError
from rag_accel.passes.split_nodes import joined, part_of
from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.messages import NodeKey, WorkSlice


@dataclass(slots=True)
class _Parted:
    request: EngineRequest
    began_at: float
    #: by first item, so that a part which is retried counts once
    results: dict[int, Any] = field(default_factory=dict[int, Any])
    #: the documents that were best last, and the share that was done when they first were
    told: tuple[str, ...] | None = None
    told_from: float = 0.0


class PartedWork:
    """Work between its first part and its last. Used on one engine's thread."""

    def __init__(self) -> None:
        self._works: dict[NodeKey, _Parted] = {}

    def __len__(self) -> int:
        return len(self._works)

    def request(
        self, client: LeafClient, part: WorkSlice
    ) -> tuple[EngineRequest, WorkSlice | None]:
        """Return the work of one part, a sub-stage with an id of its own.

        A payload that has no items is returned as a whole, and then without a part: the engine
        says what is wrong with it.

        Raises:
            SchedulingError: if the parts before it are gone.
        """
        if part.start == 0:
            request = client.request(part.node)
            assert isinstance(request, EngineRequest), "no speculation begins work in parts"
            self._works[part.node] = _Parted(request, time.monotonic())
        work = self._works.get(part.node)
        if work is None:
            raise SchedulingError(
                "the parts before this one are gone",
                where=part.node.node,
                found=f"items from {part.start}",
            )
        whole = work.request
        payload = part_of(whole.payload, part.start, None if part.is_last else part.stop)
        if payload is None:
            del self._works[part.node]
            return whole, None
        id = WorkId(f"{whole.id}#{part.start}")
        return replace(whole, id=id, payload=payload, size=part.stop - part.start), part

    def add(self, part: WorkSlice, result: Any) -> Any:
        """Take the result of one part; return that of the whole after the last, else ``None``."""
        work = self._works[part.node]
        work.results[part.start] = result
        if not part.is_last:
            return None
        del self._works[part.node]
        return joined(work.request.payload, [work.results[start] for start in sorted(work.results)])

    def so_far(self, part: WorkSlice) -> Provisional | None:
        """Return what the whole would be if an added part were its last; None if it is."""
        work = self._works.get(part.node)
        if work is None:
            return None
        payload: RerankBatch = work.request.payload
        value = joined(payload, [work.results[start] for start in sorted(work.results)])
        done = min(1.0, part.stop / max(1, len(payload.documents)))
        told = tuple(found.document.id for found in value)
        if told != work.told:
            work.told, work.told_from = told, done
        left_s = (time.monotonic() - work.began_at) * (1.0 - done) / done
        return Provisional(value, done, done - work.told_from, left_s)

    def drop(self, nodes: Iterable[NodeKey]) -> None:
        """Forget work; unknown nodes are ignored."""
        for node in nodes:
            self._works.pop(node, None)
