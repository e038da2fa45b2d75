"""Which errors another attempt may mend, and how long it waits."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from rag_accel.engine_api.transient import is_transient, retry_after_s
from rag_accel.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    GraphError,
    MemberPausedError,
    RemoteEngineError,
    RequestCancelledError,
)
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages import Retry
from rag_accel.graph.stages.retry import wait_s


def foreign(package: str, name: str, base: type[Exception] = Exception, **parts: Any) -> Exception:
    """Make an error of a class derived from one that a package defines."""
    defined = type(name, (base,), {"__module__": f"{package}.errors"})
    error = type("Derived", (defined,), {"__module__": "mine"})("told")
    for part, value in parts.items():
        setattr(error, part, value)
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


PASSING = {
    "reset": ConnectionResetError(),
    "timeout": TimeoutError(),
    "busy": BusyError("full"),
    "lost": EngineLostError("gone"),
    "paused": MemberPausedError("later"),
    "remote without a status": RemoteEngineError("the HTTP exchange failed"),
    "caused": caused(EngineError("wrapped"), ConnectionRefusedError()),
    "httpx": foreign("httpx", "TimeoutException"),
    "httpx2": foreign("httpx2", "NetworkError"),
    "httpcore2": foreign("httpcore2", "RemoteProtocolError"),
    "openai": foreign("openai", "APIConnectionError"),
    "ray": foreign("ray", "ActorUnavailableError"),
    **{
        f"remote {status}": RemoteEngineError("refused", status=status)
        for status in (408, 409, 429, 500, 503)
    },
    "openai 429": foreign("openai", "RateLimitError", status_code=429),
    "httpx 502": foreign("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=502)),
}
LASTING = {
    "value": ValueError(),
    "type": TypeError(),
    "key": KeyError(),
    "graph": GraphError("wrong"),
    "config": ConfigError("wrong"),
    "output": EngineOutputError("NaN"),
    "engine": EngineError("said no"),
    "deadline": DeadlineError("late"),
    "cancelled": RequestCancelledError("gone"),
    "closed": ClosedError("closed"),
    "caused by misuse": caused(EngineError("wrapped"), ValueError()),
    "of another package": foreign("mine", "TimeoutException"),
    "a scheme that nobody speaks": foreign("httpx", "UnsupportedProtocol"),
    **{
        f"remote {status}": RemoteEngineError("refused", status=status)
        for status in (400, 401, 403, 404, 413, 422)
    },
    "openai 400": foreign("openai", "BadRequestError", status_code=400),
    "a connection error with a status": foreign(
        "openai", "APIConnectionError", ConnectionError, status_code=401
    ),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING.keys())
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    assert is_transient(error)
    assert wait_s(Retry(1), error) is not None


@pytest.mark.parametrize("error", LASTING.values(), ids=LASTING.keys())
def test_misuse_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)
    assert wait_s(Retry(1), error) is None


def test_an_exit_is_never_tried_again() -> None:
    for error in (KeyboardInterrupt(), SystemExit()):
        assert wait_s(Retry(1, on=lambda found: True), error) is None


def test_errors_may_be_chosen() -> None:
    assert wait_s(Retry(1, on=KeyError), KeyError()) == 0.0
    assert wait_s(Retry(1, on=(OSError, KeyError)), KeyError()) == 0.0
    assert wait_s(Retry(1, on=KeyError), TimeoutError()) is None
    assert wait_s(Retry(1, on=lambda error: True), ValueError()) == 0.0


@pytest.mark.parametrize(
    ("told", "expected"), [("7", 7.0), ("0.5", 0.5), ("soon", None), ("-1", None), ("nan", None)]
)
def test_the_header_of_an_answer_is_honoured(told: str, expected: float | None) -> None:
    response = SimpleNamespace(status_code=429, headers={"retry-after": told})
    assert retry_after_s(foreign("openai", "RateLimitError", response=response)) == expected


def test_the_header_may_be_a_date() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    response = SimpleNamespace(headers={"Retry-After": format_datetime(at, usegmt=True)})
    found = retry_after_s(foreign("httpx", "HTTPStatusError", response=response))
    assert found is not None
    assert 3000.0 < found <= 3600.0
    past = SimpleNamespace(headers={"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"})
    assert retry_after_s(foreign("httpx", "HTTPStatusError", response=past)) == 0.0


def test_our_own_errors_say_when_to_come_again() -> None:
    assert wait_s(Retry(1), BusyError("full", retry_after_s=2.5)) == 2.5
    assert wait_s(Retry(1), BusyError("full")) == 0.0


def test_waits_double_up_to_a_bound_and_lose_up_to_half_by_chance() -> None:
    retry = Retry(4, backoff_s=1.0, max_backoff_s=3.0)
    assert retry.backoffs_s(lambda: 0.0) == (1.0, 2.0, 3.0, 3.0)
    assert retry.backoffs_s(lambda: 1.0) == (0.5, 1.0, 1.5, 1.5)
    assert Retry(0).backoffs_s(lambda: 0.0) == ()
    assert len(Retry(100).backoffs_s(lambda: 0.0)) == 100


def test_the_option_can_be_pickled_and_compared() -> None:
    retry = Retry(2, on=(KeyError,))
    assert pickle.loads(pickle.dumps(retry)) == retry
    assert hash(retry) == hash(Retry(2, on=(KeyError,)))


def test_attempts_of_a_whole_graph_are_for_engines_and_yield_to_a_stages_own() -> None:
    graph = RAGraph().with_retry(3)
    graph.add_generation("own", "x", retry=0).add_generation("other", "x")
    graph.add_function("fn", print)
    by_name = graph.freeze().by_name
    options = {name: getattr(stage, "retry", None) for name, stage in by_name.items()}
    assert options == {"own": Retry(0), "other": Retry(3), "fn": None}
    assert RAGraph().add_generation("a", "x").freeze().stages[0].retry is None  # type: ignore[attr-defined]
