"""The suite on endpoints counts the calls at its server, and who is answered when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

import httpx2
import openai
from langchain_core.runnables import RunnableLambda

from bench.embedding import hosted_server
from bench.embedding.hosted_server import Rate, scripted_text
from bench.limited_chats import TOKENS, Round, ask_all, ask_batch
from bench.suites import endpoints

Ask = Callable[..., Awaitable[Round]]

TINY = endpoints.Sizes(1, 1, 8, 2, after_s=0.05, rate=60.0, burst=2, answer_s=0.01)


def _altered(answered: tuple[str, float]) -> tuple[str, float]:
    return f"{answered[0]}!", answered[1]


def _round(answers: list[str | None], ended_at: list[float]) -> Round:
    return Round([f"question {number}" for number in range(len(answers))], answers, ended_at, 1.0)


def test_a_rate_gives_its_burst_and_then_a_token_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(hosted_server.time, "monotonic", lambda: now)
    rate = Rate(4.0, 2)
    assert [rate.take() for _ in range(3)] == [True, True, False]
    now = 0.125
    assert (rate.tokens(), rate.take()) == (0.5, False)
    now = 0.25
    assert [rate.take() for _ in range(2)] == [True, False]
    now = 9.0
    assert rate.tokens() == 2


def test_a_server_without_a_rate_refuses_nothing() -> None:
    rate = Rate(float("inf"), 1)
    assert all(rate.take() for _ in range(100))


def test_lost_and_wrong_answers_are_counted() -> None:
    right = scripted_text("question 0", TOKENS)
    played = _round([right, None, "another"], [2.0, 4.0, 3.0])
    assert (played.num_answered, played.num_different, played.wall_s) == (2, 1, 3.0)
    assert played.latencies_s == [1.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], 2 / 5),
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.0),
        ([4.0, 5.0, 6.0], [1.0, 2.0, 4.5], 1 / 4),
    ],
)
def test_the_share_of_the_slower_process(
    one: list[float], other: list[float], share: float
) -> None:
    rounds = (_round(["an answer"] * 3, ended_at) for ended_at in (one, other))
    assert endpoints.share_of_slower(*rounds) == pytest.approx(share)


def test_a_lost_call_is_no_answer_of_a_process() -> None:
    one, other = _round(["", None], [1.0, 9.0]), _round(["", ""], [0.5, 2.0])
    assert endpoints.share_of_slower(one, other) == 0.5  # until 1.0, where each has an answer
    assert endpoints.share_of_slower(one, _round([None], [2.0])) == 0.0


@pytest.mark.processes
def test_other_answers_fail_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = endpoints.accelerate

    def change(chain: Any, **options: Any) -> Any:
        return accelerate(chain, **options) | RunnableLambda(_altered)

    monkeypatch.setattr(endpoints, "accelerate", change)
    monkeypatch.setattr(endpoints, "_two_processes", lambda _: ([], {}))
    found = endpoints.run(True, TINY)
    of = [one.partition(":")[0] for one in found.wrong]
    assert of == [
        "accelerated, 8 callers, nothing refused",
        "accelerated, the first 8 callers, 60 calls/s",
        "accelerated, the next 8 callers, 60 calls/s",
        "accelerated, batch, a batch of 8 and interactive callers",
        "accelerated, interactive, a batch of 8 and interactive callers",
    ]
    assert found.ratios["first_answered"] == 1.0
    assert found.ratios["first_calls"] > 1.0


@pytest.mark.parametrize("ask", [ask_all, ask_batch])
async def test_a_refused_call_is_lost_and_any_other_error_is_raised(ask: Ask) -> None:
    request = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")
    refusal = openai.RateLimitError("no", response=httpx2.Response(429, request=request), body=None)

    def chain(error: Exception) -> RunnableLambda[str, tuple[str, float]]:
        def answer(question: str) -> tuple[str, float]:
            if question == "bad":
                raise error
            return scripted_text(question, TOKENS), 0.0

        return RunnableLambda(answer)

    played = await ask(chain(refusal), ["good", "bad"])
    assert (played.num_answered, played.num_different) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        await ask(chain(ZeroDivisionError()), ["good", "bad"])
