"""The suite on several devices: its virtual time, its loads and its ratios."""

from __future__ import annotations

import pytest

from bench.baselines.windve import QueueManager
from bench.devices.capacity import burst, by_tokens, largest_burst, share_in_time
from bench.devices.virtual import BoundedQueues, PlacedTexts, VirtualText, play
from bench.results import SuiteResult
from bench.suites import embedding_devices
from rag_accel.engine_api import LatencyModel

TINY = embedding_devices.Sizes(duration_s=5.0, seeds=1, halvings=3, bursts=1, largest=8, pairs=1)
LINES = [LatencyModel(0.1, 0.001), LatencyModel(0.0, 0.004)]

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def found() -> SuiteResult:
    return embedding_devices.run(True, TINY)


def test_a_device_answers_when_its_line_says() -> None:
    system = BoundedQueues(QueueManager({"main": 2, "auxiliary": 1}))
    texts = [VirtualText(0.0, 100)] * 4 + [VirtualText(0.05, 10)]
    found = play(texts, system, LINES)
    assert found[:3] == pytest.approx([0.3, 0.3, 0.4])
    assert found[3:] == [None, None]


def test_what_comes_while_a_batch_is_computed_waits_for_it() -> None:
    system = BoundedQueues(QueueManager({"main": 9, "auxiliary": 0}))
    found = play([VirtualText(0.0, 100), VirtualText(0.15, 100)], system, LINES)
    assert found == pytest.approx([0.2, 0.25])


def test_the_placement_is_looked_at_again_when_it_asks_for_it() -> None:
    texts = [VirtualText(0.0, 500), VirtualText(0.1, 100)]
    found = play(texts, PlacedTexts(LINES, 1.0), LINES)
    assert found == pytest.approx([0.6, 0.4])  # the second one on the other device, at once


def test_the_largest_burst_is_the_largest() -> None:
    lines = [by_tokens(line) for line in embedding_devices.LINES]
    found = largest_burst(lambda: PlacedTexts(lines, 1.0), lines, 1.0, 100)
    assert share_in_time(burst(found), lambda: PlacedTexts(lines, 1.0), lines, 1.0) == 1.0
    assert share_in_time(burst(found + 1), lambda: PlacedTexts(lines, 1.0), lines, 1.0) < 1.0
