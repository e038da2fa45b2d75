"""Random arrivals, ends, failures, losses, cancels and refits: nothing is lost, nothing stays."""

from __future__ import annotations

import random
from math import inf

import pytest
from virtual_clients import check

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.admission import Admission
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberBatch, MemberSpec

EVENTS = 8_000
GROUPS = 16  # a group has few members, and losses use them up


class Play:
    """A group and all that was given to it and came back, in virtual time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.names = [f"m{number}" for number in range(rng.randint(1, 5))]
        self.specs = {name: self._spec(name) for name in self.names}
        self.placement = Placement(list(self.specs.values()), self._maybe(0.5), step_timeout_s=2.0)
        self.admission = Admission(self.placement, 0.5)
        self.running: list[MemberBatch] = []
        self.open: dict[WorkId, int] = {}
        self.done: dict[WorkId, list[int]] = {}
        self.number = 0
        self.num_shared = 0

    def _spec(self, name: str) -> MemberSpec:
        rng = self.rng
        line = rng.random() / 500, rng.random() / 5
        return MemberSpec(name, *line, 16, 2048, rng.randrange(3), rng.choice((1, 1, 2)))

    def _maybe(self, value: float) -> float | None:
        return value if self.rng.random() < 0.5 else None

    def step(self) -> None:
        self.now += self.rng.expovariate(20.0)
        kinds = {
            self.arrive: 30,
            self.end: 60,
            self.fail: 4,
            self.cancel: 5,
            self.lose: 0.3,
            self.pause: 1,
            self.refuse: 1,
            self.wait: 2,
            self.rejoin: 3,
        }
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        kind()
        self.give_up()
        for batch in self.running:
            self.num_shared += sum(piece.places > 1 for piece in batch.pieces)
        self.running += self.placement.bind(self.now, cores=self.rng.randint(1, 4))
        check(self.placement)
        self.ask()
        assert self.admission.num_measured <= len(self.open)

    def ask(self) -> None:
        """Ask for admission, which is refused for a while at most."""
        live = {f"r{number}" for number in range(9)}
        again_s = self.admission.retry_after_s("r0", live, self.now, cores=2)
        assert 0.0 <= again_s < inf
        if self.placement.members or self.placement.absent:
            assert self.placement.tokens_a_second(50.0) > 0.0
            drained_s = self.placement.drained_s(100, self.now)
            assert 0.0 < drained_s < inf
            assert drained_s <= self.placement.drained_s(200, self.now)

    def arrive(self) -> None:
        self.number += 1
        # Some ids live again while members still compute what they meant before.
        work = WorkId(f"w{self.number if self.rng.random() < 0.8 else self.number % 7}")
        if work in self.open:
            return
        size = self.rng.choice((1, 1, 1, 2, 5, 200))
        self.open[work], self.done[work] = size, []
        costs = [self.rng.randint(1, 300) for _ in range(size)]
        self.admission.brought(f"r{self.number % 9}", work, costs, self.now)
        self.placement.add(
            work,
            costs,
            self.now,
            request=f"r{self.number % 9}",
            depth=self.rng.randint(1, 6),
            deadline=self._maybe(self.now + self.rng.random() * 2),
            admitted=self.rng.choice((None, None, frozenset(self.rng.sample(self.names, 1)))),
        )

    def end(self) -> None:
        if self.running:
            batch = self.running.pop(self.rng.randrange(len(self.running)))
            for piece in self.placement.ended(batch, self.rng.random(), self.now):
                self.done[piece.work] += piece.positions
                if len(self.done[piece.work]) == self.open[piece.work]:
                    self.close(piece.work)

    def close(self, work: WorkId) -> None:
        self.admission.ended(work, self.now)
        size = self.open.pop(work)
        assert sorted(self.done.pop(work)) == list(range(size))

    def fail(self) -> None:
        if self.running:
            batch = self.running.pop(self.rng.randrange(len(self.running)))
            final = self.placement.failed(batch, has_changed=self.rng.random() < 0.1)
            self.forget({piece.work for piece in final})

    def cancel(self) -> None:
        if self.open:
            work = self.rng.choice(list(self.open))
            self.placement.cancel([work])
            self.forget({work})

    def lose(self) -> None:
        self.forget({piece.work for piece in self.placement.lose(self.rng.choice(self.names))})

    def pause(self) -> None:
        self.placement.pause(self.rng.choice(self.names), self.now + self.rng.random())

    def refuse(self) -> None:
        if self.running:
            batch = self.running.pop(self.rng.randrange(len(self.running)))
            final = self.placement.refused(batch, self.now + self.rng.random())
            self.forget({piece.work for piece in final})

    def wait(self) -> None:
        self.now += 1.0

    def rejoin(self) -> None:
        self.placement.rejoin(self.specs[self.rng.choice(self.names)])

    def give_up(self) -> None:
        for batch in self.placement.silent(self.now):
            self.forget({piece.work for piece in self.placement.give_up(batch)})
        self.forget(set(self.placement.unanswered(self.now)))

    def forget(self, work_items: set[WorkId]) -> None:
        self.admission.forgotten(work_items)
        for work in work_items:
            del self.open[work], self.done[work]

    def finish(self) -> None:
        """End all that runs or waits, as long as there are members."""
        while self.placement.members and self.placement.num_work_items:
            self.now += 1.0
            self.forget(set(self.placement.unanswered(self.now)))
            self.running += self.placement.bind(self.now)
            while self.running:
                self.end()
        self.forget(set(self.placement.drop_all()))


@pytest.mark.cross_product(keep=6)
@pytest.mark.parametrize("seed", range(GROUPS))
def test_every_text_of_every_work_comes_back_once_and_nothing_stays(seed: int) -> None:
    play = Play(random.Random(seed))
    for _ in range(EVENTS // GROUPS):
        play.step()
    play.finish()
    assert play.open == {}
    assert play.placement.num_work_items == play.placement.num_queued == 0
    assert play.admission.num_measured == 0
    assert not any(play.placement.running(name) for name in play.placement.members)


def test_random_events_give_pieces_to_two_members_at_once() -> None:
    play = Play(random.Random(1))
    while not play.num_shared:
        play.step()
    assert play.number < EVENTS
