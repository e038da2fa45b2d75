"""Retry pauses, limits and Retry-After as pure functions."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.llm.remote.options import RemoteOptions, RetryPolicy, parse_retry_after
from rag_accel.errors import ConfigError


@given(attempt=st.integers(1, 99), seed=st.integers())
def test_a_pause_lies_between_half_and_all_of_the_capped_exponential(
    attempt: int, seed: int
) -> None:
    policy = RetryPolicy(max_attempts=100, base_s=0.5, max_pause_s=8.0)
    pause_s = policy.pause_s(attempt, None, random.Random(seed))
    longest = min(8.0, 0.5 * 2.0 ** (attempt - 1))
    assert pause_s is not None
    assert longest / 2 <= pause_s <= longest


def test_the_last_attempt_has_no_pause() -> None:
    assert RetryPolicy(max_attempts=3).pause_s(3, None, random.Random(0)) is None


def test_one_attempt_never_retries() -> None:
    assert RetryPolicy(max_attempts=1).pause_s(1, 0.0, random.Random(0)) is None


@given(asked=st.floats(0, 60), seed=st.integers())
def test_a_server_is_never_asked_again_before_it_wants(asked: float, seed: int) -> None:
    pause_s = RetryPolicy(base_s=0.5).pause_s(1, asked, random.Random(seed))
    assert pause_s is not None
    assert asked <= pause_s <= asked + 0.5


def test_a_server_that_asks_for_too_long_a_pause_is_given_up() -> None:
    policy = RetryPolicy(max_retry_after_s=60.0)
    assert policy.pause_s(1, 61.0, random.Random(0)) is None


def test_equal_seeds_give_equal_pauses() -> None:
    policy = RetryPolicy(seed=7)
    pauses = [policy.pause_s(1, None, random.Random(policy.seed)) for _ in range(2)]
    assert pauses[0] == pauses[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3.0),
        ("0.25", 0.25),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, expected: float | None) -> None:
    headers = {"retry-after": text, "date": "Thu, 01 Jan 1970 00:00:10 GMT"}
    assert parse_retry_after(headers) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"},
        {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT", "date": "today"},
        {
            "retry-after": f"Thu, 01 Jan {'9' * 30} 00:01:40 GMT",
            "date": "Thu, 01 Jan 1970 00:00:00 GMT",
        },
        {
            "retry-after": "Thu, 01 Jan 1970 00:01:40 GMT",
            "date": f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT",
        },
        {
            "retry-after": f"Thu, {'9' * 5000} Jan 1970 00:01:40 GMT",
            "date": "Thu, 01 Jan 1970 00:00:00 GMT",
        },
        {
            "retry-after": "Thu, 01 Jan 1970 00:01:40 +999999999999",
            "date": "Thu, 01 Jan 1970 00:00:00 GMT",
        },
    ],
)
def test_without_a_header_or_a_date_to_count_from_there_is_no_wish(
    headers: dict[str, str],
) -> None:
    assert parse_retry_after(headers) is None


@given(asked=st.text(max_size=40), told=st.text(max_size=40))
def test_no_header_is_too_odd_to_be_read(asked: str, told: str) -> None:
    seconds = parse_retry_after({"retry-after": asked, "date": told})
    assert seconds is None or 0 <= seconds < math.inf


@given(
    fields=st.lists(st.integers(0, 10**20), min_size=6, max_size=6),
    zone=st.integers(-(10**12), 10**12),
)
def test_no_date_is_too_far_away_to_be_read(fields: list[int], zone: int) -> None:
    day, year, hour, minute, second, other = fields
    asked = f"Thu, {day} Jan {year} {hour}:{minute}:{second} {zone:+05}"
    seconds = parse_retry_after(
        {"retry-after": asked, "date": f"Thu, {other} Jan 1970 00:00:00 GMT"}
    )
    assert seconds is None or 0 <= seconds < math.inf


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        (RetryPolicy, {"max_attempts": 0}, "RetryPolicy.max_attempts"),
        (RetryPolicy, {"base_s": -0.1}, "RetryPolicy.base_s"),
        (RetryPolicy, {"max_pause_s": float("nan")}, "RetryPolicy.max_pause_s"),
        (RemoteOptions, {"concurrency": 0}, "RemoteOptions.concurrency"),
        (RemoteOptions, {"read_timeout_s": 0.0}, "RemoteOptions.read_timeout_s"),
        (RemoteOptions, {"max_response_bytes": 0}, "RemoteOptions.max_response_bytes"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: type[Any], fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigError, match=name):
        kind(**fields)
