"""A limit that is far away makes nobody wait longer than none, in virtual time."""

from __future__ import annotations

import random
from statistics import median

import pytest
from virtual_clients import VirtualGroup, VirtualMember

from rag_accel.engines.devices.plan import MemberSpec

FAST = VirtualMember(MemberSpec("fast", 6e-5, 0.02, max_threads=0), 8e-5, 0.03)
SLOW = VirtualMember(MemberSpec("slow", 2e-4, 0.01), 2.6e-4, 0.012)
SLOWER = VirtualMember(MemberSpec("slower", 2e-4, 0.004), 2.6e-4, 0.006)


def waits(members: tuple[VirtualMember, ...], slo_s: float | None, every_s: float) -> list[float]:
    """Return the seconds of each query that came while a bulk of 8,000 texts was computed."""
    group = VirtualGroup(members, slo_s)
    group.at(0.0, lambda: group.submit("bulk", [75] * 8000, lambda: None))
    rng, seconds, at = random.Random(1), list[float](), 0.5

    def ask(query: str) -> None:
        came = group.now
        group.submit(query, [20], lambda: seconds.append(group.now - came))

    while at < 4.5:
        group.at(at, lambda query=f"q{at}": ask(query))
        at += rng.expovariate(1 / every_s)
    group.run(6.5)
    assert len(seconds) > 30
    return sorted(seconds)


@pytest.mark.parametrize("members", [(FAST, SLOW), (SLOWER, FAST), (FAST,)])
@pytest.mark.parametrize("every_s", [0.1, 0.03])
def test_queries_beside_a_bulk_wait_no_longer_under_a_far_limit_than_without_one(
    members: tuple[VirtualMember, ...], every_s: float
) -> None:
    without = waits(members, None, every_s)
    for slo_s in (2.0, 10.0):
        found = waits(members, slo_s, every_s)
        assert median(found) <= 1.02 * median(without)
        assert found[int(0.95 * len(found))] <= 1.05 * without[int(0.95 * len(without))]


@pytest.mark.parametrize("members", [(FAST, SLOW), (FAST,)])
def test_under_a_near_limit_queries_beside_a_bulk_wait_less(
    members: tuple[VirtualMember, ...],
) -> None:
    assert median(waits(members, 0.5, 0.1)) < median(waits(members, None, 0.1))
