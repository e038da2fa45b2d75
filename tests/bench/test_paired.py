from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.measure import Pairs
from bench.paired import PairedTimes, time_pairs
from bench.results import Row, row_of


class Recorder:
    """Record what it is asked and whether the plain arm's settings hold."""

    def __init__(self) -> None:
        self.inside = False
        self.asked: list[tuple[str, str, bool]] = []

    @contextmanager
    def settings(self) -> Iterator[None]:
        self.inside = True
        try:
            yield
        finally:
            self.inside = False


class Arm:
    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name = name
        self._recorder = recorder

    def invoke(self, question: str) -> Any:
        self._recorder.asked.append((self._name, question, self._recorder.inside))

    async def ainvoke(self, question: str) -> Any:
        self.invoke(question)


def test_both_arms_are_asked_the_same_and_only_plain_gets_its_settings() -> None:
    recorder = Recorder()
    plain, fast = Arm("plain", recorder), Arm("fast", recorder)
    found = time_pairs("chain", plain, fast, ["a", "b"], 2, 0, recorder.settings)
    once = [("plain", "a", True), ("plain", "b", True), ("fast", "a", False), ("fast", "b", False)]
    assert recorder.asked == once * 2
    assert [one.workload for one in found] == ["chain, invoke", "chain, ainvoke"]
    assert all(len(one.times_ms.plain) == len(one.times_ms.other) == 2 for one in found)


def test_the_ratio_and_the_difference_are_medians_over_pairs() -> None:
    times = PairedTimes("chain", Pairs((10.0, 20.0, 10.0), (11.0, 26.0, 10.5)))
    assert times.ratio == pytest.approx(1.1)
    assert times.extra_ms == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("plain", "other", "share"), [(1.0, 1.25, 0.5), (100.0, 101.5, 0.5), (100.0, 106.0, 2.0)]
)
def test_the_limit_is_3_percent_but_at_least_half_a_millisecond(
    plain: float, other: float, share: float
) -> None:
    assert PairedTimes("chain", Pairs((plain,), (other,))).share_of_limit == pytest.approx(share)


def test_the_rows_hold_both_arms_their_difference_and_their_ratio() -> None:
    rows = PairedTimes("chain", Pairs((2.0, 2.0), (3.0, 3.0))).rows()
    assert rows == [
        row_of("plain", "chain", "latency_ms", [2.0, 2.0]),
        row_of("accelerated", "chain", "latency_ms", [3.0, 3.0]),
        row_of("accelerated - plain", "chain", "latency_ms", [1.0, 1.0]),
        Row("accelerated / plain", "chain", "latency_ratio", 1.5, None, 2),
        Row("its 95 % interval from", "chain", "latency_ratio", 1.5, None, 2),
        Row("to", "chain", "latency_ratio", 1.5, None, 2),
    ]


def test_answers_are_compared_pair_by_pair() -> None:
    class Says(Arm):
        def invoke(self, question: str) -> str:
            return f"{self._name if question == 'b' else ''}{question}"

        async def ainvoke(self, question: str) -> str:
            return self.invoke(question)

    plain, fast = Says("plain", Recorder()), Says("fast", Recorder())
    for inputs, wrong in ((["a"], 0), (["a", "b"], 1)):
        for one in time_pairs("chain", plain, fast, inputs, 2, 0):
            (row,) = [row for row in one.rows() if row.metric == "different_answers"]
            assert (row.system, row.median, row.n) == ("accelerated", wrong, 2)
