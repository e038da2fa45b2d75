"""The tracer records at no cost when nobody looks, and a failing sink harms nobody."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from rag_accel.errors import ClosedError, ConfigError
from rag_accel.telemetry.events import (
    EVENT_TYPES,
    EngineJoined,
    NodeDispatched,
    RequestStarted,
    StepStarted,
    TraceEvent,
    to_record,
)
from rag_accel.telemetry.sinks import JsonLinesSink, MemorySink
from rag_accel.telemetry.tracer import Tracer

STARTED = RequestStarted(1.0, 7)
DISPATCHED = NodeDispatched(2.0, 7, "search", "index")
JOINED = EngineJoined(0.5, "index", owned=True, stepped=False, capacity=8)


class FailingSink:
    """Raise on every call and count them."""

    def __init__(self) -> None:
        self.writes = 0

    def write(self, event: TraceEvent) -> None:
        self.writes += 1
        raise OSError("the disk is full")

    def close(self) -> None:
        raise OSError("the disk is still full")


def test_a_tracer_that_is_not_read_wants_nothing() -> None:
    assert Tracer(capacity=0).wanted == frozenset()


def test_a_tracer_with_memory_wants_everything() -> None:
    assert Tracer(capacity=1).wanted == frozenset(EVENT_TYPES)


def test_a_sink_makes_only_its_kinds_wanted() -> None:
    tracer = Tracer(capacity=0)
    tracer.add_sink(MemorySink(), kinds=[StepStarted])
    assert tracer.wanted == {StepStarted}


def test_removing_the_last_sink_makes_nothing_wanted() -> None:
    tracer, sink = Tracer(capacity=0), MemorySink()
    tracer.add_sink(sink)
    tracer.remove_sink(sink)
    assert tracer.wanted == frozenset()


def test_the_newest_events_stay_in_memory_and_older_ones_are_counted() -> None:
    tracer = Tracer(capacity=2)
    for request in range(5):
        tracer.emit(RequestStarted(float(request), request))
    assert [event.time_s for event in tracer.events()] == [3.0, 4.0]
    assert tracer.dropped == 3


def test_an_event_to_keep_stays_readable_however_many_follow() -> None:
    tracer = Tracer(capacity=2)
    tracer.keep(JOINED)
    for request in range(5):
        tracer.emit(RequestStarted(float(request), request))
    assert [event.time_s for event in tracer.events()] == [0.5, 3.0, 4.0]
    assert tracer.dropped == 3


def test_an_event_to_keep_reaches_sinks_that_come_later_and_want_its_kind() -> None:
    early, late, other = MemorySink(), MemorySink(), MemorySink()
    tracer = Tracer(capacity=0, sinks=[early])
    tracer.keep(JOINED)
    tracer.add_sink(late)
    tracer.add_sink(other, kinds=[NodeDispatched])
    assert early.events == late.events == (JOINED,)
    assert other.events == tracer.events() == ()


def test_a_kept_event_whose_fact_is_over_is_let_go() -> None:
    tracer = Tracer()
    other = EngineJoined(1.0, "other", True, False, 1)
    tracer.keep(JOINED)
    tracer.keep(other)
    tracer.let_go(lambda event: event is JOINED)
    assert tracer.events() == (other,)


def test_a_failing_sink_does_not_keep_an_event_from_being_kept() -> None:
    failing = FailingSink()
    tracer = Tracer(sinks=[failing])
    tracer.keep(JOINED)
    tracer.add_sink(FailingSink())
    assert tracer.events() == (JOINED,)
    assert tracer.sink_failures == 2


def test_a_tracer_tells_whether_it_keeps_events() -> None:
    assert Tracer(capacity=1).records
    assert not Tracer(capacity=0, sinks=[MemorySink()]).records


def test_without_memory_nothing_is_kept_or_dropped() -> None:
    tracer = Tracer(capacity=0)
    tracer.emit(STARTED)
    assert (tracer.events(), tracer.dropped) == ((), 0)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ConfigError, match="trace_events"):
        Tracer(capacity=-1)


def test_a_sink_receives_only_the_kinds_it_asked_for() -> None:
    tracer, everything, dispatched = Tracer(), MemorySink(), MemorySink()
    tracer.add_sink(everything)
    tracer.add_sink(dispatched, kinds=[NodeDispatched])
    tracer.emit(STARTED)
    tracer.emit(DISPATCHED)
    assert everything.events == (STARTED, DISPATCHED)
    assert dispatched.events == (DISPATCHED,)


def test_a_removed_sink_receives_nothing_more_and_stays_open(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "trace.jsonl")
    tracer = Tracer(sinks=[sink])
    tracer.remove_sink(sink)
    tracer.emit(STARTED)
    sink.write(DISPATCHED)
    sink.close()
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 1


def test_an_unknown_kind_of_event_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="FailingSink"):
        Tracer().add_sink(MemorySink(), kinds=[FailingSink])  # type: ignore[list-item]


def test_a_failing_sink_disturbs_neither_the_program_nor_the_others() -> None:
    failing, memory = FailingSink(), MemorySink()
    tracer = Tracer(sinks=[failing, memory])
    tracer.emit(STARTED)
    assert memory.events == tracer.events() == (STARTED,)
    tracer.close()


def test_failures_of_a_sink_are_all_counted_but_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = FailingSink()
    tracer = Tracer(sinks=[sink])
    with caplog.at_level(logging.WARNING, logger="rag_accel.telemetry"):
        for _ in range(3):
            tracer.emit(STARTED)
        tracer.close()
    assert sink.writes == 3
    assert tracer.sink_failures == 4
    assert len(caplog.records) == 1
    assert "FailingSink" in caplog.text


def test_a_keyboard_interrupt_in_a_sink_is_not_swallowed() -> None:
    class Interrupted(MemorySink):
        def write(self, event: TraceEvent) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tracer(sinks=[Interrupted()]).emit(STARTED)


def test_closing_twice_closes_the_sinks_once() -> None:
    closed: list[str] = []

    class Closing(MemorySink):
        def close(self) -> None:
            closed.append("closed")

    tracer = Tracer(sinks=[Closing()])
    tracer.close()
    tracer.close()
    assert closed == ["closed"]


def test_a_closed_tracer_still_records_into_memory_but_takes_no_sink() -> None:
    sink = MemorySink()
    tracer = Tracer(sinks=[sink])
    tracer.close()
    tracer.emit(STARTED)
    assert tracer.events() == (STARTED,)
    assert sink.events == ()
    with pytest.raises(ClosedError):
        tracer.add_sink(MemorySink())


def test_a_cleared_memory_sink_starts_again() -> None:
    sink = MemorySink()
    sink.write(STARTED)
    sink.clear()
    sink.write(DISPATCHED)
    assert sink.events == (DISPATCHED,)


def test_json_lines_hold_one_record_per_event_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    tracer = Tracer(sinks=[JsonLinesSink(path)])
    tracer.emit(STARTED)
    tracer.emit(DISPATCHED)
    tracer.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records == [to_record(STARTED), to_record(DISPATCHED)]


def test_a_flushed_sink_has_its_lines_in_the_file(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "trace.jsonl")
    sink.write(STARTED)
    sink.flush()
    assert (tmp_path / "trace.jsonl").read_text().count("\n") == 1
    sink.close()


def test_json_lines_are_appended_to_an_earlier_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        sink = JsonLinesSink(path)
        sink.write(STARTED)
        sink.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_new_trace_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    JsonLinesSink(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_trace_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        JsonLinesSink(tmp_path / "absent" / "trace.jsonl")


def _started_and_dispatched(number: int) -> list[TraceEvent]:
    return [RequestStarted(1.0, number), NodeDispatched(2.0, number, "search", "index")]


def test_events_emitted_later_are_made_when_they_are_read() -> None:
    made: list[int] = []

    def make(number: int) -> list[TraceEvent]:
        made.append(number)
        return _started_and_dispatched(number)

    tracer = Tracer(capacity=2)
    for number in (5, 6, 7):
        tracer.emit_later(make, number)
    assert not made
    assert tracer.events() == (*_started_and_dispatched(6), *_started_and_dispatched(7))
    assert tracer.dropped == 1


def test_sinks_get_events_emitted_later_at_once_by_kind() -> None:
    tracer, sink = Tracer(capacity=0), MemorySink()
    tracer.add_sink(sink, kinds=[NodeDispatched])
    tracer.emit_later(_started_and_dispatched, 7)
    assert sink.events == (DISPATCHED,)
    assert tracer.events() == ()


def test_what_cannot_be_made_for_a_sink_costs_its_owner_nothing() -> None:
    tracer = Tracer(capacity=2)
    tracer.add_sink(FailingSink())
    tracer.emit_later(_started_and_dispatched, 7)
    assert tracer.sink_failures == 2
