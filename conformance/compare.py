"""Compare two runs of one suite test by test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conformance.outcomes import FAILED, MISSING, PASSED, UNFINISHED

TRIES = 3

_BAD = (FAILED, UNFINISHED)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Hold the ids of the tests that are not simply equal.

    ``newly_failing`` names what acceleration breaks, ``flaky`` what passed when it ran alone, and
    ``failing_plain`` what fails without acceleration, whatever it does with it.
    """

    newly_failing: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    failing_plain: tuple[str, ...] = ()


def suspects(plain: Mapping[str, str], accelerated: Mapping[str, str]) -> list[str]:
    """Return the tests that did not fail plainly and do not do as well accelerated."""
    return [
        test
        for test in dict.fromkeys((*plain, *accelerated))
        if plain.get(test) not in _BAD
        and not _is_as_good(plain, test, accelerated.get(test, MISSING))
    ]


def compare(
    plain: Mapping[str, str],
    accelerated: Mapping[str, str],
    run_alone: Callable[[str], str],
    max_alone: int = 20,
) -> Comparison:
    """Return what differs between two runs, given by the outcome of each test id.

    Args:
        plain: outcomes without acceleration.
        accelerated: outcomes with it.
        run_alone: runs one test accelerated, alone, and returns its outcome; called up to
            ``TRIES`` times for each test that may be newly failing.
        max_alone: how many such tests there may be for any to be tried alone; more are no flukes.
    """
    open_tests = suspects(plain, accelerated)
    flaky = [
        test
        for test in open_tests
        if len(open_tests) <= max_alone
        and any(_is_as_good(plain, test, run_alone(test)) for _ in range(TRIES))
    ]
    return Comparison(
        newly_failing=tuple(test for test in open_tests if test not in flaky),
        flaky=tuple(flaky),
        failing_plain=tuple(test for test, outcome in plain.items() if outcome in _BAD),
    )


def _is_as_good(plain: Mapping[str, str], test: str, outcome: str) -> bool:
    return outcome == PASSED or (outcome not in _BAD and outcome == plain.get(test))
