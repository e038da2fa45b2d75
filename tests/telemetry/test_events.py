"""Trace events hold ids, numbers and fixed words; nothing that could carry content."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from rag_accel.telemetry.events import (
    EVENT_TYPES,
    Member,
    NodeDispatched,
    NodeFinished,
    RequestId,
    StepEnded,
    TraceEvent,
    to_record,
)

FREE_WORDS = {"node", "engine", "kind"}
"""Fields that may hold any string: names the program gave, and a primitive's name."""

FREE_LISTS = {"after", "by"}
"""Fields that may hold several: names of nodes."""

WIDE = (float, int, int | None, bool, RequestId, Member, tuple[Member, ...])


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_no_field_of_an_event_can_hold_content(kind: type[TraceEvent]) -> None:
    hints = get_type_hints(kind)
    for spec in fields(kind):
        hint = hints[spec.name]
        fixed_words = get_origin(hint) is Literal
        named = spec.name in FREE_WORDS and set(get_args(hint) or (hint,)) <= {str, type(None)}
        several = spec.name in FREE_LISTS and hint == tuple[str, ...]
        assert hint in WIDE or fixed_words or named or several, f"{kind.__name__}.{spec.name}"


def test_every_event_class_is_listed_once() -> None:
    # By name: making a class slotted leaves its unslotted twin among the subclasses for a while.
    names = [kind.__name__ for kind in EVENT_TYPES]
    assert sorted(names) == sorted({kind.__name__ for kind in TraceEvent.__subclasses__()})


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_frozen_and_slotted(kind: type[TraceEvent]) -> None:
    assert "__slots__" in vars(kind)
    event = kind(*range(len(fields(kind))))
    with pytest.raises(FrozenInstanceError):
        event.time_s = 0.0  # type: ignore[misc]


def test_a_record_names_its_event_and_survives_json() -> None:
    event = StepEnded(2.5, "embedder", 7, ((1, "embed"), (2, "embed")), threads=2, duration_s=0.25)
    assert json.loads(json.dumps(to_record(event))) == {
        "event": "StepEnded",
        "time_s": 2.5,
        "engine": "embedder",
        "step": 7,
        "members": [[1, "embed"], [2, "embed"]],
        "threads": 2,
        "duration_s": 0.25,
        "ok": True,
    }


def test_a_foreign_object_enters_a_record_as_its_type_only() -> None:
    secret = ["a document's text"]
    record = to_record(NodeDispatched(0.0, 1, secret, "engine"))  # type: ignore[arg-type]
    assert record["node"] == "list"


def test_events_with_equal_fields_are_equal() -> None:
    assert NodeFinished(1.0, 1, "n", "e", "done") == NodeFinished(1.0, 1, "n", "e", "done")
    assert NodeFinished(1.0, 1, "n", "e", "done") != NodeFinished(1.0, 1, "n", "e", "failed")
