"""Counters and histograms are exact, also from many threads, and read as one nested dict."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.errors import ConfigError
from rag_accel.telemetry.metrics import (
    SECONDS_BOUNDS,
    SIZE_BOUNDS,
    TOKENS,
    Counter,
    Histogram,
    Metrics,
)

finite = st.floats(-1e6, 1e6)
bounds_of_any_kind = st.lists(finite, min_size=1, max_size=12, unique=True).map(
    lambda found: tuple(sorted(found))
)


def in_threads(work: Callable[[], None], count: int = 4) -> None:
    start = threading.Barrier(count)

    def run() -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@given(bounds=bounds_of_any_kind, values=st.lists(finite))
def test_each_value_is_counted_in_the_one_bucket_that_holds_it(
    bounds: tuple[float, ...], values: list[float]
) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    edges = [-math.inf, *bounds, math.inf]
    expected = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert histogram.snapshot()["counts"] == expected


@given(bounds=bounds_of_any_kind, values=st.lists(finite))
def test_count_sum_and_extremes_are_those_of_the_values(
    bounds: tuple[float, ...], values: list[float]
) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    found = histogram.snapshot()
    assert found["count"] == len(values)
    assert found["sum"] == pytest.approx(math.fsum(values), abs=1e-4)
    assert found["min"] == min(values, default=None)
    assert found["max"] == max(values, default=None)


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    assert histogram.snapshot()["counts"] == [1, 0, 0]


def test_a_snapshot_does_not_change_later() -> None:
    histogram = Histogram((1.0,))
    before = histogram.snapshot()
    histogram.observe(0.5)
    assert before["counts"] == [0, 0]


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, float("nan"))])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="strictly rising"):
        Histogram(bounds)


@pytest.mark.parametrize("bounds", [SECONDS_BOUNDS, SIZE_BOUNDS])
def test_the_built_in_bounds_make_a_histogram(bounds: tuple[float, ...]) -> None:
    assert Histogram(bounds).snapshot()["bounds"] == list(bounds)


def test_no_increment_of_any_thread_is_lost() -> None:
    counter = Counter()

    def work() -> None:
        for _ in range(20_000):
            counter.add()

    in_threads(work)
    assert counter.value == 80_000


def test_no_observation_of_any_thread_is_lost() -> None:
    histogram = Histogram((1.0,))

    def work() -> None:
        for _ in range(5_000):
            histogram.observe(0.5)

    in_threads(work)
    found = histogram.snapshot()
    assert (found["count"], found["sum"], found["counts"]) == (20_000, 10_000.0, [20_000, 0])


def test_the_snapshot_nests_cells_by_their_path() -> None:
    metrics = Metrics()
    metrics.counter("requests", "done").add(3)
    metrics.engine("embedder").pass_through.add()
    found = metrics.snapshot()
    assert found["requests"] == {"done": 3}
    assert found["engines"]["embedder"]["pass_through"] == 1  # type: ignore[index]


def test_the_snapshot_is_plain_json() -> None:
    metrics = Metrics()
    metrics.engine("embedder").record_step(4, 0.25)
    assert json.loads(json.dumps(metrics.snapshot())) == metrics.snapshot()


def test_an_engine_has_all_its_cells_from_the_start() -> None:
    metrics = Metrics()
    metrics.engine("embedder")
    assert set(metrics.snapshot()["engines"]["embedder"]) == {  # type: ignore[index, arg-type]
        "batch_size",
        "failures",
        "items",
        "pass_through",
        "queue_wait_s",
        "step_s",
        "steps",
    }


def test_a_recorded_step_counts_its_items_and_its_time() -> None:
    metrics = Metrics()
    engine = metrics.engine("embedder")
    engine.record_step(4, 0.25)
    engine.record_step(2, 0.75)
    assert (engine.steps.value, engine.items.value) == (2, 6)
    assert engine.batch_size.snapshot()["max"] == 4
    assert engine.step_s.snapshot()["sum"] == 1.0


def test_the_same_path_gives_the_same_cell() -> None:
    metrics = Metrics()
    assert metrics.counter("a", "b") is metrics.counter("a", "b")
    assert metrics.engine("e") is metrics.engine("e")
    assert metrics.engine("e").items is metrics.counter("engines", "e", "items")


def test_all_threads_that_ask_first_get_the_same_cell() -> None:
    metrics = Metrics()
    in_threads(lambda: metrics.engine("e").items.add(), count=8)
    assert metrics.engine("e").items.value == 8


def test_a_reset_sets_every_cell_to_zero_and_keeps_references_good() -> None:
    metrics = Metrics()
    engine = metrics.engine("e")
    engine.record_step(4, 0.25)
    metrics.reset()
    assert engine.step_s.snapshot()["count"] == 0
    engine.items.add(2)
    assert metrics.snapshot()["engines"]["e"]["items"] == 2  # type: ignore[index]


@pytest.mark.parametrize("path", [(), ("a",), ("a", "b", "c"), ("h",)])
def test_a_path_that_is_empty_or_taken_is_refused(path: tuple[str, ...]) -> None:
    metrics = Metrics()
    metrics.counter("a", "b")
    metrics.histogram("h")
    with pytest.raises(ConfigError, match="one kind of cell per path"):
        metrics.counter(*path)


def test_a_refused_path_leaves_no_trace_in_the_snapshot() -> None:
    metrics = Metrics()
    metrics.counter("a", "b")
    with pytest.raises(ConfigError):
        metrics.histogram("a", "b", "c")
    assert metrics.snapshot() == {"a": {"b": 0}}


def test_what_was_measured_of_an_engine_that_left_is_added_to_its_kind() -> None:
    metrics = Metrics()
    for number in range(3):
        metrics.engine(f"retrieval#{number}").record_step(number + 1, 0.25)
        metrics.retire_engine(f"retrieval#{number}")
    metrics.retire_engine("retrieval#9")
    (name,) = metrics.snapshot()["engines"]  # type: ignore[misc]
    assert name == "retrieval#left"
    cells = metrics.engine(name)
    assert (cells.items.value, cells.steps.value) == (6, 3)
    sizes = cells.batch_size.snapshot()
    assert (sizes["count"], sizes["sum"], sizes["min"], sizes["max"]) == (3, 6.0, 1.0, 3.0)
    assert sum(sizes["counts"]) == 3


def test_tokens_of_an_engine_that_left_are_kept_with_its_kind() -> None:
    metrics = Metrics()
    for name in ("llm#1", "llm#2"):
        metrics.engine(name)
        metrics.record_tokens(name, **dict.fromkeys(TOKENS, 3))
        metrics.retire_engine(name)
    left = metrics.snapshot()["engines"]["llm#left"]
    assert [left[name] for name in TOKENS] == [6] * len(TOKENS)
    assert "llm#1" not in metrics.snapshot()["engines"]


def test_what_an_engine_counts_stays_with_its_kind_but_not_what_it_held() -> None:
    metrics = Metrics()
    metrics.engine("llm#1")
    metrics.record_counts("llm#1", [("hits", 3), ("memory_bytes", 50)])
    metrics.record_counts("llm#1", [("hits", 1), ("memory_bytes", -20)])
    seen = metrics.snapshot()["engines"]["llm#1"]  # type: ignore[index]
    assert (seen["hits"], seen["memory_bytes"]) == (4, 30)  # type: ignore[index]
    metrics.retire_engine("llm#1")
    left = metrics.snapshot()["engines"]["llm#left"]  # type: ignore[index]
    assert left["hits"] == 4  # type: ignore[index]
    assert "memory_bytes" not in left  # type: ignore[operator]
