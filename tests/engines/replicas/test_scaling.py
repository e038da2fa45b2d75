"""The number of replicas by the work in flight."""

from __future__ import annotations

import pytest

from rag_accel.engines.replicas.engine import ReplicaLoad, ScalingRule

RULE = ScalingRule(least=1, most=3, scale_at=10, idle_s=60.0)
BUSY, IDLE = ReplicaLoad("ready", 10), ReplicaLoad("ready", 0, 60.0)


@pytest.mark.parametrize(
    ("loads", "waiting", "wanted"),
    [
        ([ReplicaLoad("ready", 9)], 0, False),
        ([ReplicaLoad("ready", 9)], 1, True),
        ([BUSY], 0, True),
        ([BUSY, BUSY], 0, True),
        ([BUSY, ReplicaLoad("ready", 9)], 0, False),
        ([BUSY, BUSY, BUSY], 99, False),
        ([BUSY, ReplicaLoad("starting")], 99, False),
        ([BUSY, BUSY, ReplicaLoad("lost")], 99, False),
        ([ReplicaLoad("lost")], 99, False),
        ([BUSY, BUSY, ReplicaLoad("draining")], 0, True),
    ],
)
def test_another_replica_is_wanted(loads: list[ReplicaLoad], waiting: int, wanted: bool) -> None:
    assert RULE.wants_another(loads, waiting) is wanted


@pytest.mark.parametrize(
    ("loads", "place"),
    [
        ([IDLE], None),
        ([IDLE, IDLE], 1),
        ([IDLE, BUSY], 0),
        ([BUSY, ReplicaLoad("ready", 0, 59.0)], None),
        ([BUSY, ReplicaLoad("ready", 0, 99.0, is_pinned=True)], None),
        ([IDLE, ReplicaLoad("starting")], None),
        ([IDLE, ReplicaLoad("lost")], None),
    ],
)
def test_an_idle_replica_beyond_the_least_may_go(
    loads: list[ReplicaLoad], place: int | None
) -> None:
    assert RULE.surplus(loads) == place
