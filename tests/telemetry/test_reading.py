"""A file of JSON lines gives back the events that were written, or says which line is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.errors import ConfigError
from rag_accel.telemetry.events import EVENT_TYPES, NodeDispatched, TraceEvent, to_record
from rag_accel.telemetry.reading import from_record, read_json_lines
from rag_accel.telemetry.sinks import JsonLinesSink

EVENT = NodeDispatched(2.5, 7, "search", "index", 0.25, "SEARCHING", ("embed",), 2, 3)

any_event = st.sampled_from(EVENT_TYPES).flatmap(st.builds)


def _write(path: Path, *events: TraceEvent) -> Path:
    sink = JsonLinesSink(path)
    for event in events:
        sink.write(event)
    sink.close()
    return path


@settings(deadline=None)
@given(event=any_event)
def test_every_event_comes_back_equal_from_its_record(event: TraceEvent) -> None:
    # As text: a time may be no number, and that equals nothing.
    assert repr(from_record(json.loads(json.dumps(to_record(event))))) == repr(event)


def test_a_file_gives_its_events_in_order(tmp_path: Path) -> None:
    events = [EVENT, NodeDispatched(3.0, "a", "n", "e")]
    assert read_json_lines(_write(tmp_path / "t", *events)) == tuple(events)


def test_an_empty_file_has_no_events(tmp_path: Path) -> None:
    assert read_json_lines(_write(tmp_path / "t")) == ()


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path / "t", EVENT, EVENT)
    path.write_bytes(path.read_bytes()[:-10])
    assert read_json_lines(path) == (EVENT,)


def test_fields_of_an_older_file_that_were_not_there_get_their_defaults() -> None:
    old = {"event": "NodeDispatched", "time_s": 1, "request_id": 1, "node": "n", "engine": "e"}
    assert from_record(old) == NodeDispatched(1.0, 1, "n", "e")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"event": "Nothing"}, "'Nothing'"),
        ({"event": None}, "None"),
        ({"prompt": "secret"}, "NodeDispatched.prompt"),
        ({"time_s": "now"}, "time_s = str"),
        ({"time_s": True}, "time_s = bool"),
        ({"after": ["a", 1]}, "after = tuple"),
        ({"after": "a"}, "after = str"),
        ({"size": 1.5}, "size = float"),
        ({"node": None}, "node = NoneType"),
        ({"time_s": 10**400}, "time_s = int"),
        ({"event": [[]]}, "list"),
        ({"after": [[["a"]]]}, "after = tuple"),
    ],
)
def test_a_damaged_line_is_named_with_what_is_wrong(
    tmp_path: Path, change: dict[str, Any], found: str
) -> None:
    path = _write(tmp_path / "t", EVENT)
    with path.open("a") as file:
        file.write(json.dumps(to_record(EVENT) | change) + "\n")
    with pytest.raises(ConfigError, match="line 2") as raised:
        read_json_lines(path)
    assert raised.value.found == found
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("line", ["{", "[]", "7", "\x00", "[" * 100_000, '{"event": ' * 100_000])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_json_lines(path)


@pytest.mark.parametrize("field", ["event", "after", "time_s"])
def test_a_record_that_nests_deep_is_no_event(field: str) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError, match="not a recorded trace event"):
        from_record(to_record(EVENT) | {field: deep})


def test_a_field_that_must_be_there_is_missed() -> None:
    with pytest.raises(ConfigError, match="no engine"):
        from_record({"event": "NodeDispatched", "time_s": 1.0, "request_id": 1, "node": "n"})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_json_lines(tmp_path / "absent")
