"""Measures of members that fall silent, come back and are asked for too much, in small."""

from __future__ import annotations

import pytest

from bench.company import members, overload

pytestmark = pytest.mark.bench


def test_a_query_of_a_silent_member_is_answered_and_its_time_is_told() -> None:
    assert 0.0 < members.silent_over_slo(quick=True) < 60.0


def test_a_server_that_was_down_is_given_a_query_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "DOWN_S", 0.2)
    assert 0.0 < members.back_s(quick=True) < 60.0


def test_overload_tells_shares_of_those_that_were_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "WARM_S", 0.5)
    monkeypatch.setattr(overload, "QUICK_S", 1.0)
    found = overload.overload(quick=True)
    assert found.answers > 0
    assert found.refusals > 0
    assert 0.0 <= found.admitted_in_limit <= 1.0
    assert found.admitted_of_capacity > 0.0
    assert found.worst_s > 0.0
    assert found.retry_after_s > 0.0


def test_three_times_as_many_clients_ask_as_fit_into_the_limit() -> None:
    # (0.5 - 0.02) / 0.008 = 60 texts on one member, half as many on the other
    assert overload.num_clients() == 270
