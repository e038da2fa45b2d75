"""The suite on mechanisms runs every arm, whose answers are equal, and shares out the gain."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("llama_index.llms.huggingface")


from bench.together.arms import ALL, EXACT, NONE, Mechanism, arms
from bench.together.shares import Worth, best_single, shares, worths


def test_the_arms_are_each_mechanism_alone_and_left_out() -> None:
    found = arms()
    assert found["none"] == NONE
    assert found["all"] == ALL == frozenset(EXACT)
    assert Mechanism.REUSE not in ALL
    for one in EXACT:
        assert found[f"{one} alone"] == {one}
        assert found[f"all without {one}"] == ALL - {one}
    assert found["chunk reuse alone"] == {Mechanism.REUSE, Mechanism.LOCAL_ENGINE}
    assert found["all and chunk reuse"] == {*Mechanism}
    assert len(found) == 2 * len(EXACT) + 4


def times(worth: float) -> dict[str, list[float]]:
    """Return the times of arms where batching alone makes anything faster, by this factor."""
    faster = {name: worth if Mechanism.BATCHING in has else 1.0 for name, has in arms().items()}
    return {name: [2.0 / factor, 4.0 / factor, 3.0 / factor] for name, factor in faster.items()}


def test_the_only_mechanism_that_helps_has_the_whole_gain() -> None:
    found = worths(times(2.0))
    assert found[Mechanism.BATCHING] == Worth(2.0, 2.0)
    assert all(one == Worth(1.0, 1.0) for name, one in found.items() if name != "batching")
    assert shares(found) == {one: float(one is Mechanism.BATCHING) for one in EXACT}
    assert best_single(times(2.0)) == "batching alone"


def test_shares_add_up_to_the_whole_also_where_a_mechanism_costs() -> None:
    found = {one: Worth(1.0, 1.0) for one in Mechanism}
    found |= {Mechanism.BATCHING: Worth(4.0, 1.0), Mechanism.DEVICES: Worth(1.0, 0.5)}
    given = shares(found)
    assert given[Mechanism.BATCHING] == pytest.approx(2.0)
    assert given[Mechanism.DEVICES] == pytest.approx(-1.0)
    assert math.fsum(given.values()) == pytest.approx(1.0)
    assert set(shares(dict.fromkeys(Mechanism, Worth(1.0, 1.0))).values()) == {0.0}
