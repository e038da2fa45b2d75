"""Members that cannot be reached when their group is made, and take part once they can."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors
from returning_groups import (
    PATIENCE_S,
    ended,
    group,
    request,
    state_of,
    wait_until_ready,
)

from rag_accel.engines.devices.fidelity import probe_texts
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.errors import ConfigError, EngineLostError, RemoteEngineError


def unreached(name: str = "away", **more: Any) -> FakeMember:
    member = FakeMember(name, **more)
    member.error = RemoteEngineError("no connection to the server")
    return member


def come(member: FakeMember, engine: DeviceGroup) -> None:
    member.error = None
    wait_until_ready(engine, member.name)


def wait_until_out(engine: DeviceGroup, name: str) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        if state_of(engine, name).state == "lost":
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{name} is not told to stay out")


def test_a_member_that_is_down_at_first_takes_work_once_it_is_there_in_its_order() -> None:
    away, here = unreached(), FakeMember("here")
    with group(away, here, slo_s=60.0) as engine:
        assert state_of(engine, "away").state == "paused"
        assert "no connection" in state_of(engine, "away").why
        (line, _) = engine.describe_parts()
        assert line.startswith("away: paused: no vectors: [RA430] no connection")
        assert "asked again in" in line
        assert engine.health().is_ready
        ended(engine, request("before"))
        assert here.calls == [["text before"]]
        come(away, engine)
        assert {text for call in away.calls for text in call} == set(probe_texts())
        away.calls.clear()
        ended(engine, request("after"))
        assert away.calls == [["text after"]]
        assert engine.describe_parts() == (
            "away: equal vectors on all probes",
            "here: the first member",
        )


@pytest.mark.parametrize("status", [None, 429, 500, 503])
def test_an_error_that_says_nothing_of_the_call_is_waited_out(status: int | None) -> None:
    away, here = FakeMember("away"), FakeMember("here")
    away.error = RemoteEngineError("not now", status=status)
    with group(here, away) as engine:
        come(away, engine)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_server_that_refuses_the_call_stays_out(status: int) -> None:
    away, here = FakeMember("away"), FakeMember("here")
    away.error = RemoteEngineError("no such model", status=status)
    with group(here, away) as engine:
        assert state_of(engine, "away").state == "lost"
        assert away.is_closed


def test_a_member_that_comes_with_other_vectors_stays_out_for_good() -> None:
    other = unreached(vectors=lambda texts, role: plain_vectors(texts, role) + 1.0)
    with group(other, FakeMember("here"), slo_s=60.0) as engine:
        other.error = None
        wait_until_out(engine, "away")
        assert "stays out: other vectors" in state_of(engine, "away").why
        assert any(line.startswith("away: stays out") for line in engine.describe_parts())
        found = ended(engine, request("w"))
        np.testing.assert_array_equal(found, plain_vectors(["text w"], "query"))
    assert other.is_closed


def test_the_first_member_that_works_is_what_others_are_compared_with() -> None:
    first, broken, third = unreached("first"), FakeMember("broken"), FakeMember("third")
    broken.error = ValueError("no weights")
    with group(first, broken, third, slo_s=60.0) as engine:
        assert state_of(engine, "broken").state == "lost"
        come(first, engine)
        first.calls.clear()
        ended(engine, request("w"))
        assert first.calls == [["text w"]]
        third.error = EngineLostError("gone")  # the reference itself may go
        ended(engine, request("v"))


@pytest.mark.parametrize("others", [(), ("second",)])
def test_without_any_member_that_works_the_first_ones_error_is_told(others: Sequence[str]) -> None:
    members = [unreached("first"), *map(unreached, others)]
    with pytest.raises(ConfigError, match=r"first member.*cannot embed") as caught:
        DeviceGroup(members)
    assert "no connection" in str(caught.value)
    assert all(member.is_closed for member in members)


def test_a_first_member_that_fails_by_itself_is_no_matter_of_waiting() -> None:
    first, second = FakeMember("first"), FakeMember("second")
    first.error = ValueError("no weights")
    with pytest.raises(ConfigError, match="no weights"):
        DeviceGroup([first, second])


def test_a_reproducible_group_awaits_nobody() -> None:
    with pytest.raises(ConfigError, match="cannot embed"):
        DeviceGroup([unreached(), FakeMember("here")], reproducible=True)
    away = unreached()
    with group(FakeMember("here"), away, reproducible=True) as engine:
        assert state_of(engine, "away").state == "lost"


def test_a_group_with_an_awaited_member_is_closed_while_it_waits() -> None:
    away = unreached()
    made = DeviceGroup([FakeMember("here"), away])
    made.close()
    assert away.is_closed
