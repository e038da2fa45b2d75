"""The page of a run shows its engines and requests, and whatever names they have as text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headless_browser import CHROMIUM, dumped
from profile_harness import primitive, recording, request

from rag_accel.engine_api.health import Health
from rag_accel.errors import ConfigError
from rag_accel.profile.profile import profile_events
from rag_accel.profile.recording import RecordedStep
from rag_accel.profile.run_page import MOST_REQUESTS, page_data, run_page
from rag_accel.telemetry.events import NodeDispatched, NodeFinished, RequestEnded, RequestStarted

HOSTILE = '</script><img src=x onerror="document.title=1">'
FORK = request(
    primitive("a.embedding", 1, 3, engine="x", ready_s=0),
    primitive("b.embedding", 1, 4, engine="x", ready_s=0),
    primitive("c.decoding", 4, 8, "a.embedding", "b.embedding", engine="y"),
)
RUN = replace(
    recording(FORK, x=4),
    steps=(RecordedStep("x", 2, 1, 4, ((1, "a.embedding"), (1, "b.embedding")), 1, True),),
)


def engines(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {engine["name"]: engine for engine in data["engines"]}


def test_engines_are_counted_from_their_steps_or_calls() -> None:
    found = engines(page_data(RUN, "a run"))
    assert {name: (one["items"], one["steps"]) for name, one in found.items()} == {
        "x": (2, 1),
        "y (borrowed)": (1, 1),
    }
    assert found["y (borrowed)"]["at_once"] == 0.5


def test_counts_health_and_queues_are_those_of_the_accelerator() -> None:
    health = {"x": Health("x", "paused", "429", (Health("cpu", "lost", "gone"),))}
    counts = {"x": {"items": 7, "steps": 3, "failures": 1}}
    found = engines(page_data(RUN, "a run", "live", counts, health, {"x": (5, 2)}))["x"]
    assert [found[name] for name in ("items", "steps", "failures", "waiting", "running")] == [
        *(7, 3, 1),
        *(5, 2),
    ]
    assert (found["state"], found["why"]) == ("paused", "429")
    assert found["members"] == [{"name": "cpu", "state": "lost", "why": "gone"}]


def test_a_request_that_is_not_over_has_no_end() -> None:
    alive = replace(FORK, outcome=None, primitives=(replace(FORK.primitives[0], outcome=None),))
    (shown,) = page_data(recording(alive, x=4), "a run")["requests"]
    assert shown["ended"] is None
    assert shown["primitives"][0]["ended"] is None


def test_the_newest_requests_are_shown() -> None:
    many = replace(RUN, requests=tuple(replace(FORK, id=number) for number in range(60)))
    shown = [one["id"] for one in page_data(many, "a run")["requests"]]
    assert shown == [*range(59, 59 - MOST_REQUESTS, -1)]


def test_names_cannot_end_the_data() -> None:
    page = run_page(page_data(replace(RUN, requests=(replace(FORK, id=HOSTILE),)), HOSTILE))
    _, _, rest = page.partition('<script id="data" type="application/json">')
    data = json.loads(rest.partition("</script>")[0])
    assert (data["title"], data["requests"][0]["id"]) == (HOSTILE, HOSTILE)
    assert HOSTILE not in page


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    events = (
        RequestStarted(0.0, 1),
        NodeDispatched(1.0, 1, "a.embedding", "x"),
        NodeFinished(2.0, 1, "a.embedding", "x", "done", 1.0),
        RequestEnded(2.0, 1, "done"),
    )
    profile = profile_events(events)
    profile.save_page(tmp_path / "run.html")
    assert "<title>rag_accel</title>" in (tmp_path / "run.html").read_text()
    with pytest.raises(ConfigError, match="cannot be written"):
        profile.save_page(tmp_path / "none" / "run.html")


@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
def test_a_browser_draws_it_and_shows_names_as_text(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text(run_page(page_data(replace(RUN, requests=(replace(FORK, id=HOSTILE),)), "t")))
    drawn = dumped(path.as_uri(), "<summary")
    body = drawn.partition("<body>")[2].partition('<script id="data"')[0]
    assert "&lt;/script&gt;&lt;img src=x" in body
    assert "<img" not in body
    assert body.count('class="arrow"') == 2
    assert body.count('class="run"') == 1 + 1 + 3  # a step, a call, and three primitives
    assert body.count('class="wait"') == 2
