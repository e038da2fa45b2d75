"""Wherever a leaf stands in a LangGraph program, its calls are scheduled and nothing else changes.

Each case is a program with its leaf in one place, a kind of leaf, and a way to call the program.
The leaves count their own calls: a meter that errs, or a scheduler that never hears of a call, is
found whatever it says itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


@dataclass(frozen=True, slots=True)
class Case:
    """Name a program, the kind of its leaf, and a way to call it."""

    program: Program
    kind: str
    entry: Entry

    def __str__(self) -> str:
        return f"{self.program.name}-{self.kind}-{self.entry.name}"


CASES = [
    Case(program, kind, entry)
    for program in PROGRAMS
    for kind in program.kinds
    for entry in ENTRIES
]


@lru_cache(maxsize=256)
def _plain(case: Case) -> Outcome:
    return run(case.program, case.kind, case.entry, "plain")


@pytest.mark.cross_product(keep=40)
@pytest.mark.parametrize("arm", ["accelerate", "activate"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_scheduled_program_does_what_the_plain_one_does_and_every_call_is_scheduled(
    case: Case, arm: Arm
) -> None:
    plain, found = _plain(case), run(case.program, case.kind, case.entry, arm)
    assert (found.items, found.history) == (plain.items, plain.history)
    assert found.scheduled == found.metered == found.calls == plain.calls
    assert found.passed_by == 0


@pytest.mark.parametrize("entry", ENTRIES[:2], ids=lambda entry: entry.name)
def test_a_store_that_embeds_in_threads_without_a_context_is_scheduled(entry: Entry) -> None:
    (program,) = (one for one in PROGRAMS if one.name == "graph_store")
    found = run(program, "embeddings", entry, "accelerate")
    assert found.scheduled == found.calls != {}
