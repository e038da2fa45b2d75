"""Many requests with faults, cancellations, deadlines and hangs leave nothing behind."""

from __future__ import annotations

from random import Random

import pytest
from core_player import Player, play

from rag_accel.scheduler.deadlines import MOST_PLACES


@pytest.mark.parametrize(
    "num_requests", [2_000, pytest.param(20_000, marks=pytest.mark.slow)], ids=str
)
def test_everything_is_over_and_forgotten_at_the_end(num_requests: int) -> None:
    player = Player(validate_every=num_requests // 20, max_requests=40)
    play(player, Random(num_requests), num_requests, hang_every=num_requests)
    state = player.state
    assert state.is_empty()
    assert not state.dirty
    assert len(state.deadlines) <= 65
    assert set(state.programs) <= {"p", "q"}
    assert len(state.latest_starts) <= 65
    for times in state.programs.values():
        assert len(times.gaps) <= len(state.engines) + 1
        assert len(times.places) <= MOST_PLACES
    for engine in state.engines.values():
        assert engine.step is None
        assert engine.threads == 0
        assert engine.wait_until is None
        assert not engine.flights


def test_a_crowd_of_callers_that_go_away_leaves_nothing_behind() -> None:
    player = Player(validate_every=100, max_requests=1000)
    rng = Random(7)
    for _ in range(600):
        player.bring_leaf(rng)
        player.bring_graph(rng)
    player.cancel_all()
    player.drain(rng)
