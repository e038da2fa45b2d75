"""WindVE as printed: its queues and its tables."""

from __future__ import annotations

import pytest

from bench.baselines.windve import (
    ConvergingQueue,
    Device,
    QueueManager,
    depths_of,
)
from rag_accel.engine_api import LatencyModel

V100, XEON = LatencyModel(0.27, 0.0179), LatencyModel(0.32, 0.0852)
ATLAS, KUNPENG = LatencyModel(0.24, 0.00904), LatencyModel(0.85, 0.0754)


def depths(main: int, auxiliary: int) -> dict[Device, int]:
    return {"main": main, "auxiliary": auxiliary}


# Algorithm 1.


def test_the_accelerator_fills_first_then_the_cpu_then_nothing() -> None:
    queues = QueueManager[str](depths(2, 1))
    assert [queues.put(query) for query in "abcd"] == ["main", "main", "auxiliary", "BUSY"]
    assert queues.take("main") == ["a", "b"]
    assert queues.take("auxiliary") == ["c"]


def test_what_is_computed_counts_until_it_ends() -> None:
    queues = QueueManager[str](depths(1, 0))
    queues.put("a")
    batch = queues.take("main")
    assert queues.put("b") == "BUSY"
    queues.end("main", batch)
    assert queues.put("b") == "main"
    assert queues.length("main") == 1


def test_the_accelerator_is_preferred_again_as_soon_as_it_has_room() -> None:
    queues = QueueManager[str](depths(1, 2))
    assert [queues.put(query) for query in "ab"] == ["main", "auxiliary"]
    queues.end("main", queues.take("main"))
    assert queues.put("c") == "main"


# Equation 12, against Table 3 ("depth by regression"); its lines are solved from rounded figures.


@pytest.mark.parametrize(
    ("main", "auxiliary", "slo_s", "printed"),
    [
        (V100, XEON, 1.0, (40, 8)),
        (V100, XEON, 2.0, (96, 20)),
        (ATLAS, KUNPENG, 1.0, (84, 2)),
        (ATLAS, KUNPENG, 2.0, (195, 15)),
    ],
)
def test_depths_are_those_of_the_printed_regression(
    main: LatencyModel, auxiliary: LatencyModel, slo_s: float, printed: tuple[int, int]
) -> None:
    found = depths_of(main, auxiliary, slo_s)
    assert found["main"] == pytest.approx(printed[0], abs=1)
    assert found["auxiliary"] == pytest.approx(printed[1], abs=1)


def test_a_device_too_slow_for_one_query_has_no_queue() -> None:
    assert depths_of(V100, KUNPENG, 0.9) == depths(35, 0)
    assert depths_of(V100, None, 1.0) == depths(40, 0)


# One queue for both.


def test_one_queue_gives_each_free_device_the_oldest_it_may_hold() -> None:
    queue = ConvergingQueue[int](depths(3, 2))
    assert [queue.put(query) for query in range(6)] == ["queued"] * 5 + ["BUSY"]
    assert queue.take("auxiliary") == [0, 1]
    assert queue.take("main") == [2, 3, 4]
    queue.end("auxiliary", [0, 1])
    assert [queue.put(query) for query in range(6, 9)] == ["queued", "queued", "BUSY"]
