"""A page of HTML that draws a recording: engines, their steps, and requests over their plans.

It needs no network and no other file. It shows names of stages and engines, ids, numbers and
outcomes; no prompt, document or error text ever gets here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from rag_accel.engine_api.health import Health
from rag_accel.profile.recording import (
    RecordedEngine,
    RecordedPrimitive,
    RecordedRequest,
    RecordedStep,
    Recording,
)

MOST_REQUESTS = 50
"""Requests that are drawn, the newest first."""

_PLACE = '<script id="data" type="application/json">null</script>'

Json = dict[str, Any]


def run_page(data: Json | None = None) -> str:
    """Return the page; without data it asks ``status/events`` of where it lies."""
    # A script's text ends at the first "</script", wherever that stands.
    text = json.dumps(data).replace("<", "\\u003c")
    return _page().replace(_PLACE, _PLACE.replace("null", text, 1), 1)


def page_data(
    recording: Recording,
    title: str,
    state: str = "",
    counts: Mapping[str, Mapping[str, Any]] | None = None,
    health: Mapping[str, Health] | None = None,
    queues: Mapping[str, tuple[int, int]] | None = None,
) -> Json:
    """Return what the page shows of a recording, as values of JSON; times in seconds.

    Args:
        recording: what is drawn.
        title: of the page.
        state: a line below it.
        counts: of each engine, as ``Metrics.snapshot()["engines"]``; else counted here.
        health: of each engine.
        queues: of each engine, how many works wait for it and how many it has.
    """
    requests = recording.requests[: -MOST_REQUESTS - 1 : -1]
    drawn = requests or recording.steps
    starts = [one.arrived_s if isinstance(one, RecordedRequest) else one.started_s for one in drawn]
    start = min(starts, default=0.0)
    ends = [one.ended_s for one in (*requests, *recording.steps)]
    now = max(ends, default=start)
    steps, primitives = dict[str, list[RecordedStep]](), dict[str, list[RecordedPrimitive]]()
    for step in recording.steps:
        steps.setdefault(step.engine, []).append(step)
    for request in recording.requests:
        for primitive in (*request.primitives, *request.nested):
            primitives.setdefault(primitive.engine, []).append(primitive)
    names: list[str] = sorted({*recording.engines, *(counts or ())})
    engines = [
        _engine(
            recording.engines.get(name, RecordedEngine(name)),
            steps.get(name, []),
            primitives.get(name, []),
            start,
            now,
            None if counts is None else counts.get(name, {}),
            (health or {}).get(name),
            (queues or {}).get(name, ("", "")),
        )
        for name in names
        if name
    ]
    return {
        "title": title,
        "state": state or f"{len(recording.requests)} requests, the newest first",
        "start": start,
        "now": now,
        "dropped": recording.dropped,
        "engines": engines,
        "requests": [_request(request) for request in requests],
    }


def _engine(
    engine: RecordedEngine,
    steps: list[RecordedStep],
    primitives: list[RecordedPrimitive],
    start: float,
    now: float,
    counts: Mapping[str, Any] | None,
    health: Health | None,
    queue: tuple[int | str, int | str],
) -> Json:
    if not steps:  # a call of a borrowed engine is a step of one
        steps = [
            RecordedStep(engine.name, 0, one.started_s, one.ended_s, (), 1, one.outcome == "done")
            for one in primitives
            if one.ended_s > one.started_s
        ]
    if counts is None:
        counts = {
            "items": sum(max(1, len(step.members)) for step in steps),
            "steps": len(steps),
            "failures": sum(step.ok is False for step in steps),
        }
    recent = [step for step in steps if step.ended_s >= start]
    spent = sum(min(step.ended_s, now) - max(step.started_s, start) for step in recent)
    return {
        "name": engine.name if engine.owned else f"{engine.name} (borrowed)",
        "state": "" if health is None else health.state,
        "why": "" if health is None else health.why,
        "members": [
            {"name": part.name, "state": part.state, "why": part.why}
            for part in (() if health is None else health.parts)
        ],
        "waiting": queue[0],
        "running": queue[1],
        **{name: counts.get(name, 0) for name in ("items", "steps", "failures")},
        "at_once": spent / max(now - start, 1e-9),
        "recent": [
            {
                "started": step.started_s,
                "ended": step.ended_s,
                "items": max(1, len(step.members)),
                "threads": step.threads,
                "ok": step.ok,
            }
            for step in recent
        ],
    }


def _request(request: RecordedRequest) -> Json:
    parts = [(one, False) for one in request.primitives] + [(one, True) for one in request.nested]
    return {
        "id": request.id,
        "origin": request.origin,
        "outcome": request.outcome,
        "arrived": request.arrived_s,
        "ended": None if request.outcome is None else request.ended_s,
        "primitives": [
            {
                "name": one.name,
                "kind": one.kind,
                "engine": one.engine,
                "after": list(one.after),
                "ready": one.ready_s,
                "started": one.started_s,
                "ended": None if one.outcome is None else one.ended_s,
                "outcome": one.outcome,
                "nested": is_nested,
            }
            for one, is_nested in parts
        ],
    }


@cache
def _page() -> str:
    return files("rag_accel.profile").joinpath("run_page.html").read_text(encoding="utf-8")
