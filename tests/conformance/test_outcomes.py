"""What pytest reports while it runs becomes one outcome per test."""

from __future__ import annotations

from conformance.outcomes import count, outcomes_of


def _records(*events: tuple[str, str]) -> list[dict[str, str]]:
    return [{"id": test, "event": event} for test, event in events]


def _phases(test: str, *outcomes: str) -> list[dict[str, str]]:
    return _records((test, "started"), *((test, one) for one in outcomes), (test, "finished"))


def test_a_test_passes_if_all_of_its_phases_do() -> None:
    assert outcomes_of(_phases("t", "passed", "passed", "passed")) == {"t": "passed"}


def test_a_test_that_breaks_in_its_tear_down_has_failed() -> None:
    assert outcomes_of(_phases("t", "passed", "passed", "failed")) == {"t": "failed"}


def test_a_skipped_test_is_neither_passed_nor_failed() -> None:
    assert outcomes_of(_phases("t", "skipped", "passed")) == {"t": "skipped"}


def test_a_test_without_an_end_is_unfinished() -> None:
    assert outcomes_of(_records(("t", "started"), ("t", "passed"))) == {"t": "unfinished"}


def test_a_test_that_took_its_worker_down_has_failed() -> None:
    assert outcomes_of(_records(("t", "started"), ("t", "failed"))) == {"t": "failed"}


def test_unfinished_tests_are_counted_as_failed() -> None:
    outcomes = {"a": "passed", "b": "unfinished", "c": "failed", "d": "skipped"}
    assert count(outcomes) == {"passed": 1, "failed": 2, "skipped": 1}
