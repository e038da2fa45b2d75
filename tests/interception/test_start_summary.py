"""An accelerated process says once, when it has started, what acts in it and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rag_accel.interception import start_summary
from rag_accel.interception.leaf_call import NotedCall, meters, note_leaf
from rag_accel.interception.start_summary import NOTHING, StartSummary


class Acting:
    """A leaf whose work an engine does."""


class Idle:
    """A leaf of no framework, which no engine runs."""


@pytest.fixture
def summary() -> Iterator[StartSummary]:
    made = StartSummary(says_nothing=True)
    made.begin()
    yield made
    made.end()


def note(obj: Any, way: Any, number: int = 1) -> None:
    for _ in range(number):
        note_leaf(obj, (), way, "work")


def test_it_names_classes_that_act_and_others_with_the_reason(summary: StartSummary) -> None:
    note(Idle(), "admitted")
    note(Acting(), "admitted")
    note(Acting(), "owned")
    note(object(), None)  # of no accelerated program
    assert summary.line() == (
        "acts: Acting; does not: Idle, because no engine of this library computes what this class"
        " does"
    )


@pytest.mark.parametrize(("limit", "calls"), [({"MOST_CALLS": 3}, 3), ({"MOST_S": 0.0}, 1)])
def test_it_leaves_after_the_first_calls_and_prints_once(
    limit: dict[str, Any],
    calls: int,
    summary: StartSummary,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start_summary, *limit.popitem())
    note(Acting(), "owned", calls - 1)
    assert summary.note in meters
    note(Acting(), "owned")
    assert summary.note not in meters
    summary.end()
    assert capfd.readouterr().err == "rag-accel: acts: Acting\n"


def test_a_process_without_a_call_says_so_if_it_was_asked_for() -> None:
    assert StartSummary(says_nothing=True).line() == NOTHING
    assert StartSummary(says_nothing=False).line() == ""


def test_a_forked_child_prints_nothing(
    summary: StartSummary, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    summary.note(NotedCall(Acting(), (), "owned", "work"))
    monkeypatch.setattr(start_summary.os, "getpid", lambda: -1)
    summary.end()
    assert capfd.readouterr().err == ""
