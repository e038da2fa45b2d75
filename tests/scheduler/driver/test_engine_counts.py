"""What an engine counts of its own is passed on as changes, and its failing harms nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rag_accel.scheduler.driver.worker import EngineCounts
from rag_accel.testing import FakeEngine


class Counting(FakeEngine):
    """An engine that counts what a test says."""

    said: Mapping[str, int] | None = {"hits": 0}

    @property
    def counts(self) -> Mapping[str, int]:
        if self.said is None:
            raise RuntimeError("broken")
        return self.said


def test_changes_since_the_last_step_are_told() -> None:
    engine = Counting()
    counts = EngineCounts(engine)
    engine.said = {"hits": 2, "held_bytes": 10}
    assert dict(counts.changes()) == {"hits": 2, "held_bytes": 10}
    assert counts.changes() == ()
    engine.said = {"hits": 3, "held_bytes": 4}
    assert dict(counts.changes()) == {"hits": 1, "held_bytes": -6}


def test_an_engine_that_fails_to_say_is_left_out() -> None:
    engine = Counting()
    counts = EngineCounts(engine)
    engine.said = None
    assert counts.changes() == ()


def test_an_engine_that_counts_nothing_tells_nothing() -> None:
    assert EngineCounts(FakeEngine()).changes() == ()
