"""The part that all retrieval engines share: requests held from ``submit`` to the next step."""

from __future__ import annotations

from collections.abc import Sequence

from rag_accel.engine_api import EngineProfile, EngineRequest, WorkId
from rag_accel.engines.bases import OwnEngine


class PendingRequests(OwnEngine):
    """A base of engines whose step takes everything submitted. Used by one thread.

    Args:
        profile: of the engine; constant.
    """

    def __init__(self, profile: EngineProfile) -> None:
        super().__init__(profile)
        self._pending: dict[WorkId, EngineRequest] = {}

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._pending.update((request.id, request) for request in work)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        for work in ids:
            self._pending.pop(work, None)

    def close(self) -> None:
        """Forget all work; the index stays the caller's."""
        self._pending.clear()

    def _taken(self) -> list[EngineRequest]:
        work, self._pending = list(self._pending.values()), {}
        return work
