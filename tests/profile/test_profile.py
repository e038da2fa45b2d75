"""A profile tells where the time of real runs went, as their engines were told to spend it."""

from __future__ import annotations

import json
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from leaf_calls import make_call
from profile_harness import engines_of, on_clock, search_and_answer, settle

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.profile.critical_path import critical_path
from rag_accel.profile.profile import Profile, profile_events, profile_of
from rag_accel.profile.replay import replay
from rag_accel.telemetry import JsonLinesSink, TraceEvent
from rag_accel.telemetry.events import (
    NodeDispatched,
    NodeFinished,
    RequestEnded,
    RequestStarted,
)
from rag_accel.telemetry.reading import read_json_lines
from rag_accel.testing import FakeEngine, ManualClock

CHAIN = {"embedder": [0.25], "index": [0.5], "llm": [1.25]}


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Profile one run of a retrieval and a generation, one step after the other."""
    clock = ManualClock()
    with on_clock(monkeypatch, clock, **engines_of(clock.advance, CHAIN)) as (acc, _):
        acc.run(search_and_answer(), input="x")
        settle(acc)
        return profile_of(acc.tracer)


def test_a_chain_shows_what_its_engines_were_told_to_take(chain: Profile) -> None:
    assert (chain.requests, chain.failed, chain.left_out, chain.dropped) == (1, 0, 0, 0)
    assert (chain.p50_ms, chain.p99_ms, chain.outside_share) == (2000.0, 2000.0, 0.0)
    rows = [
        (row.stage, row.kind, row.engine, row.count, row.waiting_ms, row.queued_ms, row.running_ms)
        for row in chain.stages
    ]
    assert rows == [
        ("search", "EMBEDDING", "embedder", 1, 0.0, 0.0, 250.0),
        ("search", "SEARCHING", "index", 1, 250.0, 0.0, 500.0),
        ("answer", "DECODING", "llm", 1, 750.0, 0.0, 1250.0),
    ]
    assert [row.critical_share for row in chain.stages] == [0.125, 0.25, 0.625]
    assert [(use.engine, use.steps, use.busy_share) for use in chain.engines] == [
        ("embedder", 1, 0.125),
        ("index", 1, 0.25),
        ("llm", 1, 0.625),
    ]


def test_the_text_of_a_profile(chain: Profile) -> None:
    assert str(chain).split("\n") == [
        "profile: 1 request done",
        "  p50 2000.00 ms, p99 2000.00 ms, 0.0 % outside of any primitive",
        "stages (ms):",
        "  stage   kind       engine    count  waiting  queued  running      p50      p99"
        "  critical",
        "  search  EMBEDDING  embedder      1     0.00    0.00   250.00   250.00   250.00"
        "    12.5 %",
        "  search  SEARCHING  index         1   250.00    0.00   500.00   500.00   500.00"
        "    25.0 %",
        "  answer  DECODING   llm           1   750.00    0.00  1250.00  1250.00  1250.00"
        "    62.5 %",
        "engines:",
        "  engine    driven  steps  batch    busy",
        "  embedder  owned       1   1.00  12.5 %",
        "  index     owned       1   1.00  25.0 %",
        "  llm       owned       1   1.00  62.5 %",
    ]


def test_a_profile_as_a_dict_is_plain_json(chain: Profile) -> None:
    told = json.loads(json.dumps(chain.to_dict()))
    assert told["p50_ms"] == 2000.0
    assert told["stages"][2]["running_ms"] == 1250.0
    assert told["engines"][0]["engine"] == "embedder"
    assert "recording" not in told


def test_who_comes_while_an_engine_is_busy_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = RAGraph()
    graph.add_generation("answer", prompt="{input}")
    graph.add_edge(START, "answer").add_edge("answer", END)
    clock = ManualClock()
    made = engines_of(clock.sleep, {"llm": [1.0, 0.5]})
    with on_clock(monkeypatch, clock, **made) as (acc, watcher):
        first = acc.submit(graph, input="x")
        clock.wait_for_sleepers(1)
        clock.advance(0.25)
        others = [acc.submit(graph, input="y"), acc.submit(graph, input="z")]
        settle(acc)
        clock.advance(0.75)
        watcher.wait_for_end()
        clock.wait_for_sleepers(1)
        clock.advance(0.5)
        for handle in (first, *others):
            handle.result(20)
        settle(acc)
        profile = profile_of(acc.tracer)
    (row,) = profile.stages
    assert (row.count, row.queued_ms, row.p50_ms, row.p99_ms) == (3, 500.0, 1250.0, 1250.0)
    (use,) = profile.engines
    assert (use.steps, use.mean_batch, use.busy_share) == (2, 1.5, 1.0)


def test_an_intercepted_program_shows_its_calls_and_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    with on_clock(monkeypatch, clock) as (acc, _):
        search = acc.borrow("store", PrimitiveKind.SEARCHING)
        model = acc.borrow("model", PrimitiveKind.DECODING)
        with acc.request("program") as identity:

            def take(seconds: float) -> None:
                settle(acc)  # what the driver has not heard of has not begun
                clock.advance(seconds)

            take(1.0)
            make_call(acc, identity, search, PrimitiveKind.SEARCHING, lambda: take(2.0))
            take(0.5)
            make_call(acc, identity, model, PrimitiveKind.DECODING, lambda: take(4.0))
            take(0.5)
        settle(acc)
        profile = profile_of(acc.tracer)
    shares = {(row.stage, row.engine): row.critical_share for row in profile.stages}
    assert shares == {("leaf", "store"): 0.25, ("leaf", "model"): 0.5}
    assert profile.outside_share == 0.25
    (request,) = profile.recording.done
    assert [one.after for one in request.primitives] == [(), ("leaf1",)]


def test_an_engine_is_busy_while_any_call_runs() -> None:
    spans = {"leaf1": (0, 8), "leaf2": (1, 2), "leaf3": (4, 6), "leaf4": (9, 10)}
    events: list[TraceEvent] = [RequestStarted(0, 1, "program")]
    for name, (start, end) in spans.items():
        events += [NodeDispatched(start, 1, name, "e"), NodeFinished(end, 1, name, "e", "done")]
    (use,) = profile_events([*events, RequestEnded(10, 1, "done")]).engines
    assert (use.steps, use.mean_batch, use.busy_share) == (4, 1, 0.9)


def test_a_loop_is_one_stage_and_each_turn_follows_its_condition() -> None:
    graph = RAGraph()
    graph.add_function("draft", lambda text: text, inputs="input")
    turns = iter(["draft", "draft", END])
    graph.add_edge(START, "draft").add_edge("draft", lambda _: next(turns))
    with Accelerator() as acc:
        acc.run(graph, input="x")
        settle(acc)
        profile = profile_of(acc.tracer)
    assert [row.count for row in profile.stages] == [3, 3]
    (request,) = profile.recording.done
    first, *rest = critical_path(request).primitives
    assert [one.stage for one in (first, *rest)] == [row.stage for row in profile.stages] * 3
    assert first.after == ()
    for before, one in pairwise([first, *rest]):
        assert one.after == (before.name,)


def test_what_failed_is_counted_and_not_timed() -> None:
    graph = RAGraph()
    graph.add_function("half", lambda number: 1 / number, inputs="input")
    graph.add_edge(START, "half").add_edge("half", END)
    with Accelerator() as acc:
        acc.run(graph, input=1)
        with pytest.raises(ZeroDivisionError):
            acc.run(graph, input=0)
        settle(acc)
        profile = profile_of(acc.tracer)
    assert (profile.requests, profile.failed) == (1, 1)
    assert "1 request done, 1 not done" in str(profile)
    assert [row.count for row in profile.stages] == [1]


def test_requests_of_which_a_part_was_overwritten_are_left_out() -> None:
    graph = RAGraph()
    graph.add_function("same", lambda text: text, inputs="input")
    graph.add_edge(START, "same").add_edge("same", END)
    with Accelerator(trace_events=6) as acc:
        for number in range(4):
            acc.run(graph, input=str(number))
        settle(acc)
        profile = profile_of(acc.tracer)
    # Four events each: those of the last, and the last two of the one before.
    assert (profile.requests, profile.left_out, profile.dropped) == (1, 0, 10)
    assert [use.engine for use in profile.engines] == ["user code"]
    assert "10 older events overwritten" in str(profile)


def test_without_a_trace_an_error_says_how_to_get_one() -> None:
    with Accelerator(trace_events=0) as acc, pytest.raises(ConfigError, match="trace_events") as e:
        profile_of(acc.tracer)
    assert "RAG_ACCEL_TRACE_EVENTS" in str(e.value)


def test_before_anything_ran_an_error_says_to_run_something() -> None:
    with Accelerator() as acc, pytest.raises(ConfigError, match="run something first"):
        profile_of(acc.tracer)


def test_if_everything_was_overwritten_an_error_says_to_keep_more() -> None:
    with pytest.raises(ConfigError, match="raise trace_events"):
        profile_events((), dropped=100)


def test_events_from_a_file_give_the_profile_of_those_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Accelerator(llm=FakeEngine(), embedder=FakeEngine(), index=FakeEngine()) as acc:
        acc.tracer.add_sink(JsonLinesSink(path))
        for number in range(3):
            acc.run(search_and_answer(), input=str(number))
        settle(acc)
        from_memory = profile_of(acc.tracer)
    from_file = profile_events(read_json_lines(path))
    assert from_file == from_memory
    assert replay(from_file.recording) == replay(from_memory.recording)


def test_a_saved_trace_is_readable_by_its_owner_only(chain: Profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    path.chmod(0o644)
    chain.save_chrome_trace(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_fails_leaves_the_old_file(
    chain: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="cannot be written"):
        chain.save_chrome_trace(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(chain: Profile, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        chain.save_chrome_trace(tmp_path / "absent" / "trace.json")


def test_neither_prompts_nor_documents_nor_errors_get_into_a_profile(tmp_path: Path) -> None:
    secret = "only-the-user-may-see-this"

    def fail(text: str) -> str:
        raise ValueError(text)

    graph = search_and_answer()
    failing = RAGraph()
    failing.add_function("fail", fail, inputs="input")
    failing.add_edge(START, "fail").add_edge("fail", END)
    with Accelerator(llm=FakeEngine(), embedder=FakeEngine(), index=FakeEngine()) as acc:
        assert secret in acc.run(graph, input=secret)
        with pytest.raises(ValueError, match=secret):
            acc.run(failing, input=secret)
        settle(acc)
        profile = profile_of(acc.tracer)
        events = repr(acc.tracer.events())
    profile.save_chrome_trace(tmp_path / "trace.json")
    written = (tmp_path / "trace.json").read_text()
    assert "search.embedding" in written
    for text in (events, written, str(profile), repr(profile), json.dumps(profile.to_dict())):
        assert secret not in text
