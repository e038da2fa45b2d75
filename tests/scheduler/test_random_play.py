"""Any order of events that engines and callers can bring about keeps every promise."""

from __future__ import annotations

from random import Random

import pytest
from core_model import ENGINES
from core_player import FEW_ACTIONS, Player, play
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

CHOICES = st.integers(0, 2**16).map(Random)


class SchedulerMachine(RuleBasedStateMachine):
    """Play by hypothesis; ``Player`` checks after each event, and at the end all must be over."""

    @initialize(max_requests=st.integers(1, 8), ageing_s=st.sampled_from([0.001, 0.5]))
    def start(self, max_requests: int, ageing_s: float) -> None:
        self.player = Player(max_requests=max_requests, ageing_s=ageing_s)

    @rule(rng=CHOICES)
    def let_time_pass(self, rng: Random) -> None:
        self.player.let_time_pass(rng)

    @rule(rng=CHOICES)
    def tick_early(self, rng: Random) -> None:
        self.player.tick_early(rng)

    @rule(rng=CHOICES)
    def open_program(self, rng: Random) -> None:
        self.player.open_program(rng)

    @rule(rng=CHOICES)
    def bring_leaf(self, rng: Random) -> None:
        self.player.bring_leaf(rng)

    @rule(rng=CHOICES)
    def bring_another_leaf(self, rng: Random) -> None:
        self.player.bring_leaf(rng)

    @rule(rng=CHOICES)
    def bring_early(self, rng: Random) -> None:
        self.player.bring_early(rng)

    @rule(rng=CHOICES)
    def begin_answer(self, rng: Random) -> None:
        self.player.begin_answer(rng)

    @rule(rng=CHOICES)
    def ask_answer(self, rng: Random) -> None:
        self.player.ask_answer(rng)

    @rule(rng=CHOICES)
    def bring_graph(self, rng: Random) -> None:
        self.player.bring_graph(rng)

    @rule(rng=CHOICES)
    def end_step(self, rng: Random) -> None:
        self.player.end_step(rng)

    @rule(rng=CHOICES)
    def fail_step(self, rng: Random) -> None:
        self.player.fail_step(rng)

    @rule(rng=CHOICES)
    def end_call(self, rng: Random) -> None:
        self.player.end_call(rng)

    @rule(rng=CHOICES)
    def cancel_node(self, rng: Random) -> None:
        self.player.cancel_node(rng)

    @rule(rng=CHOICES)
    def cancel_request(self, rng: Random) -> None:
        self.player.cancel_request(rng)

    @rule(rng=CHOICES)
    def close_program(self, rng: Random) -> None:
        self.player.close_program(rng)

    @rule(rng=CHOICES)
    def hang(self, rng: Random) -> None:
        self.player.hang(rng)

    @precondition(lambda self: self.player.events > 30)
    @rule(rng=CHOICES)
    def close(self, rng: Random) -> None:
        self.player.close(rng)

    @invariant()
    def engines_hold_what_the_core_thinks(self) -> None:
        if hasattr(self, "player"):
            for name, engine in self.player.engines.items():
                running = self.player.state.engines[name].running
                assert set(engine.held or engine.calls) >= set(running)

    def teardown(self) -> None:
        if hasattr(self, "player"):
            self.player.drain(Random(0))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_seeded_play_keeps_every_promise(seed: int) -> None:
    player = Player(max_requests=4 + seed * 4)
    play(player, Random(seed), num_requests=250, hang_every=200)
    for kind in ("StartStep", "StartCall", "EndNode", "EndRequest", "CancelWork", "InterruptStep"):
        assert player.counts[kind] > 0
    assert set(player.ended.values()) >= {"done", "failed", "cancelled", "deadline", "lost"}


@pytest.mark.parametrize("seed", range(3))
def test_a_play_of_few_requests_keeps_every_promise(seed: int) -> None:
    player = Player(max_requests=2)
    play(player, Random(seed), num_requests=250, hang_every=200, chosen=FEW_ACTIONS)
    begun = [node for node in player.started if node.node.startswith("ahead")]
    assert {player.ended[node] for node in begun} >= {"done", "cancelled"}


@pytest.mark.parametrize("together", [2, 7])
def test_events_that_arrive_together_keep_every_promise(together: int) -> None:
    player = Player(max_requests=8, together=together)
    play(player, Random(together), num_requests=250, hang_every=200)
    assert set(player.ended.values()) >= {"done", "failed", "cancelled", "deadline"}


def test_the_play_covers_every_kind_of_engine() -> None:
    player = Player()
    play(player, Random(1), num_requests=200)
    started = {player.specs[node].engine for node in player.started}
    assert started == {event.engine for event in ENGINES}
