"""Random failures, silences, changes, cancels and refusals of a real group: nothing stays behind.

Threads make each play another one; what is asserted holds in all of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import MemberLimits
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.members import MemberChangedError
from rag_accel.errors import MemberPausedError, RagAccelError, RemoteEngineError

LIMITS = MemberLimits(
    first_pause_s=0.001,
    longest_pause_s=0.002,
    second_try_s=0.002,
    silent_s=0.02,
    absent_s=0.05,
    compare_every_texts=4,
)
ROUNDS = 150
MOST_STEPS = 20_000


class Unsteady:
    """Vectors of a member that fails in one of the ways that members do, now and then."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_steady = True

    def __call__(self, texts: Sequence[str], role: str) -> Any:
        if self.is_steady or self.rng.random() < 0.6:
            return plain_vectors(texts, role)
        kind = self.rng.randrange(5)
        if kind == 0:
            raise RemoteEngineError("no connection")
        if kind == 1:
            raise MemberPausedError("too many", retry_after_s=0.001)
        if kind == 2:
            raise MemberChangedError("another model")
        if kind == 3:  # late, and perhaps given up
            threading.Event().wait(self.rng.random() * 0.06)
            return plain_vectors(texts, role)
        return plain_vectors(texts, role)[:-1]


class Play:
    """A group, what it was given, and what came of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.vectors = [Unsteady(random.Random(seed + at)) for at in range(3)]
        members: list[Any] = [
            FakeMember(f"m{at}", vectors=one, max_texts=8) for at, one in enumerate(self.vectors)
        ]
        members[0].in_flight = 2
        members[1].may_change = True
        members[2].namespaces = frozenset({"open"})
        slo_s = 0.02 if seed % 4 else None
        self.group = DeviceGroup(members, slo_s=slo_s, refuses_late=True, limits=LIMITS)
        self.open: dict[str, tuple[str, ...]] = {}
        self.number = 0

    def step(self) -> None:
        for _ in range(self.rng.randrange(4)):
            self.submit()
        if self.open and self.rng.random() < 0.2:
            id = self.rng.choice(list(self.open))
            del self.open[id]
            self.group.cancel([WorkId(id)])
        self.take(self.rng.random() / 500)
        assert self.num_measured <= len(self.open)

    @property
    def num_measured(self) -> int:
        """Return how many works the group's admission expects to end."""
        admission: Any = getattr(self.group, "_admission")  # noqa: B009
        return 0 if admission is None else admission.num_measured

    def submit(self) -> None:
        # Some ids live again while members still compute what they meant before.
        self.number += 1
        id = f"w{self.number % 11}"
        if id in self.open or self.group.retry_after_s(id, {*self.open}) > 0.0:
            return
        texts = tuple(f"{self.number} {at}" for at in range(self.rng.choice((1, 1, 3, 20))))
        self.open[id] = texts
        namespace = self.rng.choice(("", "open"))
        payload = TextBatch(texts, self.rng.choice(("query", "document")), keep=True)
        self.group.submit(
            [EngineRequest(WorkId(id), id, PrimitiveKind.EMBEDDING, payload, namespace)]
        )

    def take(self, time_s: float) -> None:
        for output in self.group.step(StepBudget(time_s)):
            texts = self.open.pop(output.id)  # each ends once, and none that was cancelled
            if output.kind == "error":
                assert isinstance(output.error, RagAccelError)
            else:
                np.testing.assert_array_equal(output.value, plain_vectors(texts, "query"))

    def finish(self) -> None:
        for one in self.vectors:
            one.is_steady = True
        for _ in range(MOST_STEPS):
            if not self.open:
                return
            self.take(0.01)
        raise AssertionError(f"these never end: {sorted(self.open)}")


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("seed", range(12))
def test_each_work_ends_once_and_leaves_nothing(seed: int) -> None:
    play = Play(seed)
    try:
        for one in play.vectors:
            one.is_steady = False
        for _ in range(ROUNDS):
            play.step()
        play.finish()
        group: Any = play.group
        assert not group._jobs
        assert group._placement.num_work_items == group._placement.num_queued == 0
        assert play.num_measured == 0
        play.submit()  # and the group goes on
        play.finish()
    finally:
        play.group.close()
