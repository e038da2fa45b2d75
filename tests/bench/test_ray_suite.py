"""The suite of Ray where Ray is not installed, its ratios, and its check of answers."""

from __future__ import annotations

import pytest

from bench.suites import ratio_definitions, ray


def _times() -> ray.Times:
    return {
        ("hop", "here"): [[0.0001, 0.0001]],
        ("hop", "RayEngine"): [[0.0016, 0.0016]],
        ("hop", "plain actor"): [[0.0006, 0.0006]],
        ("embedding", "here"): [[0.02], [0.04]],
        ("embedding", "RayEngine"): [[0.022], [0.044]],
        ("embedding", "plain actor"): [[0.022], [0.044]],
        ("embedding", "Serve handle"): [[0.044], [0.088]],
        ("1 searches", "one index here"): [[0.02]],
        ("1 searches", "RayShards"): [[0.01]],
        ("1 searches", "plain actors"): [[0.03]],
        ("16 searches", "one index here"): [[0.2]],
        ("16 searches", "RayShards"): [[0.1]],
        ("16 searches", "plain actors"): [[0.1]],
    }


def test_ratios_are_those_of_the_times_and_each_is_defined() -> None:
    found = ray.ratios_of(_times())
    assert found == pytest.approx(
        {
            "hop_ms": 1.5,
            "hop_over_ray_ms": 1.0,
            "hosted_over_local": 1.1,
            "hosted_over_actor": 1.0,
            "hosted_over_serve": 0.5,
            "shards_vs_one_b1": 2.0,
            "shards_vs_actors_b1": 3.0,
            "shards_vs_one_b16": 2.0,
            "shards_vs_actors_b16": 1.0,
        }
    )
    assert set(ratio_definitions("ray")) == set(found)
    assert {(row.workload, row.system) for row in ray.rows_of(_times())} == set(_times())


@pytest.mark.parametrize(
    ("workload", "other", "wrong"),
    [
        ("embedding", [[1.0 + 5e-6, 2.0]], 0),
        ("embedding", [[1.001, 2.0]], 1),
        ("1 searches", [[1, 2]], 0),
        ("1 searches", [[2, 1]], 1),
        ("1 searches", [[1]], 1),
    ],
)
def test_answers_that_differ_are_wrong(workload: str, other: object, wrong: int) -> None:
    answers = {"right": {"same": [[1, 2]]}, "other": {"same": other}}
    assert len(ray.different(workload, "right", answers)) == wrong


def test_every_arm_of_the_ratios_is_measured() -> None:
    arms = {
        (workload, arm) for workload, names in ray.workloads(ray.QUICK).items() for arm in names
    }
    assert arms == set(_times())
