"""Two runs are compared by the ids of their tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.compare import TRIES, Comparison, compare


def _never(test: str) -> str:
    raise AssertionError(f"{test} need not run alone")


class _Alone:
    """Give one outcome after another, and remember what was asked for."""

    def __init__(self, *outcomes: str) -> None:
        self._outcomes = iter(outcomes)
        self.asked: list[str] = []

    def __call__(self, test: str) -> str:
        self.asked.append(test)
        return next(self._outcomes)


def _always(outcome: str) -> Callable[[str], str]:
    return lambda test: outcome


def test_equal_runs_have_nothing_to_tell() -> None:
    outcomes = {"a": "passed", "b": "skipped"}
    assert compare(outcomes, outcomes, _never) == Comparison()


@pytest.mark.parametrize("outcome", ["failed", "unfinished", "skipped"])
def test_a_test_that_passes_only_plainly_is_newly_failing(outcome: str) -> None:
    found = compare({"a": "passed"}, {"a": outcome}, _always(outcome))
    assert found == Comparison(newly_failing=("a",))


def test_a_test_that_did_not_run_accelerated_is_newly_failing() -> None:
    found = compare({"a": "passed", "b": "passed"}, {"b": "passed"}, _always("missing"))
    assert found.newly_failing == ("a",)


def test_a_test_that_only_the_accelerated_run_knows_must_pass() -> None:
    assert compare({}, {"a": "failed"}, _always("failed")).newly_failing == ("a",)
    assert compare({}, {"a": "passed"}, _never) == Comparison()


def test_a_test_that_is_skipped_plainly_must_not_fail() -> None:
    found = compare({"a": "skipped"}, {"a": "failed"}, _always("failed"))
    assert found.newly_failing == ("a",)


def test_a_test_that_passes_alone_is_flaky() -> None:
    alone = _Alone("failed", "failed", "passed")
    assert compare({"a": "passed"}, {"a": "failed"}, alone) == Comparison(flaky=("a",))


def test_a_test_is_tried_alone_until_it_passes_and_not_oftener_than_allowed() -> None:
    passing, failing = _Alone("passed"), _Alone(*["failed"] * (TRIES + 1))
    compare({"a": "passed"}, {"a": "failed"}, passing)
    compare({"b": "passed"}, {"b": "failed"}, failing)
    assert passing.asked == ["a"]
    assert failing.asked == ["b"] * TRIES


def test_so_many_failures_that_they_are_no_flukes_are_not_tried_alone() -> None:
    tests = [f"t{number}" for number in range(4)]
    plain, accelerated = dict.fromkeys(tests, "passed"), dict.fromkeys(tests, "failed")
    assert compare(plain, accelerated, _never, max_alone=3).newly_failing == tuple(tests)


@pytest.mark.parametrize("outcome", ["failed", "passed"])
@pytest.mark.parametrize("plain", ["failed", "unfinished"])
def test_a_test_that_fails_plainly_is_named_and_excused(plain: str, outcome: str) -> None:
    found = compare({"a": plain}, {"a": outcome}, _never)
    assert found == Comparison(failing_plain=("a",))
