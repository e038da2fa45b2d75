"""Wherever a leaf stands in a LangGraph program, its calls are scheduled and nothing else changes.

Each case is a program with its leaf in one place, a kind of leaf, and a way to call the program.
The leaves count their own calls: a meter that errs, or a scheduler that never hears of a call, is
found whatever it says itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

pytest.importorskip("langgraph")

from places_kit import Program
from places_programs import PROGRAMS
from places_running import ENTRIES, Arm, Entry, Outcome, run

pytestmark = [
    # Both say only that a call which LangGraph documents may change.
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
    pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10"),
]

ARMS: tuple[Arm, ...] = ("accelerate", "activate")


@dataclass(frozen=True, slots=True)
class Case:
    """Name a program, the kind of its leaf, and a way to call it."""

    program: Program
    kind: str
    entry: Entry

    def __str__(self) -> str:
        return f"{self.program.name}-{self.kind}-{self.entry.name}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Hold what a program did plainly and what it did scheduled."""

    plain: Outcome
    scheduled: Outcome


PLACES = [(program, kind) for program in PROGRAMS for kind in program.kinds]


def _cases(program: Program, kind: str) -> list[Case]:
    """Return all ways to call a program that it can be called in."""
    unsaved = program.saving is False
    return [Case(program, kind, entry) for entry in ENTRIES if not (unsaved and entry.saving)]


def _sample() -> Iterator[Case]:
    """Yield two cases of every place: one of the plain calls, and in turn one of all the others."""
    for number, (program, kind) in enumerate(PLACES):
        cases = _cases(program, kind)
        yield cases[number % 2]
        yield cases[2 + number % (len(cases) - 2)]


SAMPLE = list(_sample())


@lru_cache(maxsize=len(SAMPLE))
def _plain(case: Case) -> Outcome:
    return run(case.program, case.kind, case.entry, "plain")


@pytest.fixture(
    scope="module",
    params=[(case, arm) for case in SAMPLE for arm in ARMS],
    ids=lambda param: "-".join(map(str, param)),
)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Run one case plainly and scheduled, once for all tests."""
    case, arm = request.param
    return Pair(_plain(case), run(case.program, case.kind, case.entry, arm))


@pytest.mark.cross_product(keep=13)
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_two_plain_runs_do_the_same(case: Case) -> None:
    again = run(case.program, case.kind, case.entry, "plain")
    assert _visible(again) == _visible(_plain(case))
    assert again.scheduled == {}


@pytest.mark.cross_product(keep=39)
def test_a_scheduled_program_does_what_the_plain_one_does(pair: Pair) -> None:
    assert _visible(pair.scheduled) == _visible(pair.plain)


@pytest.mark.cross_product(keep=39)
def test_the_scheduler_hears_of_every_leaf_call(pair: Pair) -> None:
    assert pair.scheduled.scheduled == pair.scheduled.calls


@pytest.mark.cross_product(keep=39)
def test_the_meter_says_what_the_leaves_counted(pair: Pair) -> None:
    assert pair.scheduled.metered == pair.scheduled.calls
    assert pair.scheduled.passed_by == 0


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["plain", *ARMS])
@pytest.mark.parametrize(("program", "kind"), PLACES, ids=lambda part: getattr(part, "name", part))
def test_every_way_to_call_a_program_is_scheduled_and_else_the_same(
    program: Program, kind: str, arm: Arm
) -> None:
    faults = {str(case): _faults(case, arm) for case in _cases(program, kind)}
    assert {name: found for name, found in faults.items() if found} == {}


def _visible(outcome: Outcome) -> Any:
    """Return what a program's caller and its leaves see of a run."""
    return outcome.items, outcome.history, outcome.calls


def _faults(case: Case, arm: Arm) -> list[str]:
    """Return what is wrong with one run, in words."""
    plain, found = _plain(case), run(case.program, case.kind, case.entry, arm)
    wanted = found.calls if arm != "plain" else {}
    return [
        fault
        for fault, is_there in (
            ("other items", found.items != plain.items),
            ("another history", found.history != plain.history),
            (f"calls {found.calls}, plainly {plain.calls}", found.calls != plain.calls),
            (f"scheduled {found.scheduled} of {wanted}", found.scheduled != wanted),
            (f"metered {found.metered} of {wanted}", found.metered != wanted),
            (f"passed by {found.passed_by}", arm != "plain" and found.passed_by != 0),
        )
        if is_there
    ]
