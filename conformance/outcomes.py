"""Make one outcome per test of what pytest reports while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
#: The test began and nothing more was heard of it: it hung, or took its process down.
UNFINISHED = "unfinished"
#: What a run has no record of.
MISSING = "missing"

_RANK = {PASSED: 0, SKIPPED: 1, FAILED: 2}


def outcomes_of(records: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return each test's outcome by its id.

    Args:
        records: ``{"id", "event"}`` in order, the event ``started``, ``finished`` or the outcome of
            one of its phases: set-up, call and tear-down. The worst phase counts.
    """
    worst: dict[str, str] = {}
    open_tests: dict[str, None] = {}
    for record in records:
        test, event = record["id"], record["event"]
        if event == "started":
            open_tests[test] = None
        elif event == "finished":
            open_tests.pop(test, None)
        else:
            worst[test] = max(worst.get(test, PASSED), event, key=_RANK.__getitem__)
    # A worker that crashed reports a failure for its test and no end.
    hung = {test: UNFINISHED for test in open_tests if worst.get(test) != FAILED}
    return {**worst, **hung}


def count(outcomes: Mapping[str, str]) -> dict[str, int]:
    """Return how many tests passed, failed and were skipped; unfinished ones failed."""
    found = Counter(outcomes.values())
    return {
        PASSED: found[PASSED],
        FAILED: found[FAILED] + found[UNFINISHED],
        SKIPPED: found[SKIPPED],
    }
