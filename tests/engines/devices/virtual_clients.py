"""Clients and members of a device group in virtual time; members cost other than first guessed."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.admission import Admission
from rag_accel.engines.devices.pieces import WorkPiece
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberSpec


@dataclass(frozen=True)
class VirtualMember:
    """A member whose steps take another time than its first guess says.

    Args:
        spec: what placement is told; its line is the first guess.
        alpha: its real seconds a token.
        beta: its real seconds a step.
        jitter: by how much a step is shorter or longer, drawn for each.
    """

    spec: MemberSpec
    alpha: float
    beta: float
    jitter: float = 0.1


@dataclass
class Outcome:
    """What clients have seen.

    Args:
        admitted: pairs of the arrival and the seconds of each answer.
        retries: pairs of the time and ``retry_after_s`` of each refusal.
        refused_in_a_row: most refusals of one client before it was admitted.
    """

    admitted: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    retries: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    refused_in_a_row: int = 0


class VirtualGroup:
    """A placement and its admission, driven as a device group drives them.

    Args:
        members: the members, most preferred first.
        slo_s: by when a text should have ended.
        refuses: whether requests that would end too late are refused.
        seed: of the members' jitter.
    """

    def __init__(
        self,
        members: Sequence[VirtualMember],
        slo_s: float | None = None,
        refuses: bool = False,
        seed: int = 1,
    ) -> None:
        self.now = 0.0
        self.placement = Placement([one.spec for one in members], slo_s)
        self.admission = Admission(self.placement, slo_s) if slo_s is not None and refuses else None
        self._members = {one.spec.name: one for one in members}
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._waiting: dict[WorkId, Callable[[], None]] = {}
        self._live: set[str] = set()

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Act at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def ask(self, request: str) -> float:
        """Return 0 if a request is admitted, else the seconds after which to come again."""
        if self.admission is None:
            return 0.0
        return self.admission.retry_after_s(request, self._live | {request}, self.now)

    def submit(self, request: str, costs: Sequence[int], then: Callable[[], None]) -> None:
        """Submit the only work of a request."""
        work = WorkId(request)
        self._waiting[work] = then
        self._live.add(request)
        if self.admission is not None:
            self.admission.brought(request, work, costs, self.now)
        self.placement.add(work, costs, self.now, request=request)
        self._bind()

    def run(self, until: float) -> None:
        """Let all happen that happens before a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def _bind(self) -> None:
        for batch in self.placement.bind(self.now):
            member = self._members[batch.member]
            swing = 1.0 + member.jitter * self._rng.uniform(-1.0, 1.0)
            seconds = (member.alpha * batch.cost + member.beta) * swing
            self.at(self.now + seconds, lambda b=batch, s=seconds: self._end(b, s))
        again = self.placement.look_again_at(self.now)
        if again is not None:
            self.at(again, self._bind)

    def _end(self, batch: Any, seconds: float) -> None:
        done = self.placement.ended(batch, seconds, self.now)
        for work in dict.fromkeys(piece.work for piece in done):
            if not self.placement.has(work):
                self._live.discard(str(work))
                if self.admission is not None:
                    self.admission.ended(work, self.now)
                self._waiting.pop(work)()
        self._bind()


def ask_in_loops(
    group: VirtualGroup, clients: int, until: float, cost: Callable[[], int], think_s: float = 0.0
) -> Outcome:
    """Let each client ask again as soon as it is answered, or when it was told to."""
    outcome = Outcome()
    numbers = count()

    def ask(refused: int = 0) -> None:
        came = group.now
        request = f"r{next(numbers)}"
        wait_s = group.ask(request)
        if wait_s > 0.0:
            outcome.retries.append((came, wait_s))
            outcome.refused_in_a_row = max(outcome.refused_in_a_row, refused + 1)
            group.at(came + wait_s, lambda: ask(refused + 1))
            return

        def answered() -> None:
            outcome.admitted.append((came, group.now - came))
            group.at(group.now + think_s, ask)

        group.submit(request, [cost()], answered)

    for number in range(clients):
        group.at(number * 1e-4, ask)
    group.run(until)
    return outcome


def check(placement: Placement) -> None:
    """Raise AssertionError unless each piece of a live work is in ``places`` places.

    It is in one, or in another too where a member is late; and never twice in the queue.
    """
    places: Counter[WorkPiece] = Counter()
    for state in placement._states():
        assert len(state.running) <= state.spec.in_flight
        for batch in state.running:
            places.update(batch.pieces)
    for work in placement._works.values():
        assert work.left
        assert len(set(work.todo)) == len(work.todo)
        assert {piece for piece in work.left if piece.is_queued} == set(work.todo)
        places.update(work.todo)
        assert all(places[piece] == piece.places > 0 for piece in work.left)
    restricted = [work for work in placement._works.values() if work.admitted is not None]
    assert len(restricted) == placement._num_restricted
