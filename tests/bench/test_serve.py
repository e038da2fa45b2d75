"""The suite on what serving costs: arms, ratios and answers, and the processes behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from bench.results import SuiteResult, as_json, from_json
from bench.serving import objects
from bench.serving.fastapi_endpoint import make_endpoint
from bench.serving.in_process import load as load_in_process
from bench.suites import ratio_definitions, serve
from rag_accel.errors import EngineError
from rag_accel_demo.load import Load

QUESTIONS = [f"question {number}?" for number in range(12)]
TINY = serve.Sizes(
    alone={objects.NO_OP: 3, objects.RETRIEVAL: 2},
    connections=4,
    loaded={objects.NO_OP: 8, objects.RETRIEVAL: 4},
    repeats=2,
)


class FakeArms:
    """Arms that take a time of their own for each question."""

    seconds = {serve.IN_PROCESS: 0.001, serve.OURS: 0.0025, serve.FASTAPI: 0.002}

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, *_: Any) -> dict[str, serve.Arm]:
        return {name: self._arm(name) for name in self.seconds}

    def _arm(self, name: str) -> Callable[[Sequence[str], int], Load]:
        def ask(questions: Sequence[str], connections: int) -> Load:
            self.asked.append((name, len(questions), connections))
            each = self.seconds[name]
            answers = tuple(f"{one}{name * (name == self.wrong)}" for one in questions)
            return Load(answers, (each,) * len(answers), each * len(answers) / connections)

        return ask


class NoClient:
    """A client that no arm asks."""

    def __enter__(self) -> NoClient:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeArms], SuiteResult]:
    """Return the suite with fake arms instead of processes."""
    monkeypatch.setattr(serve, "Client", NoClient)
    monkeypatch.setattr(serve, "_questions", lambda count: QUESTIONS[:count])

    def run(arms: FakeArms) -> SuiteResult:
        monkeypatch.setattr(serve, "_arms", arms)
        return serve.run(True, TINY)

    return run


def test_ratios_are_differences_to_each_opponent(
    measure: Callable[[FakeArms], SuiteResult],
) -> None:
    arms = FakeArms()
    found = measure(arms)
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions("serve"))
    assert {name: round(value, 6) for name, value in found.ratios.items()} == {
        "serve_overhead_ms": 1.5,
        "serve_overhead_retrieval_ms": 1.5,
        "serve_vs_fastapi_ms": 0.5,
        "serve_vs_fastapi_retrieval_ms": 0.5,
        "serve_throughput_16": 0.8,
        "serve_throughput_16_retrieval": 0.8,
        "one_user": 1.25,
        "one_user_ms": 0.5,
    }
    assert found.wrong == ()
    # each arm once to warm up, then twice alone and twice loaded
    assert arms.asked.count((serve.OURS, 3, 1)) == 2
    assert arms.asked.count((serve.OURS, 8, 4)) == 3


@pytest.mark.parametrize("system", [serve.OURS, serve.FASTAPI])
def test_an_answer_that_is_not_that_in_process_fails_the_suite(
    measure: Callable[[FakeArms], SuiteResult], system: str
) -> None:
    wrong = measure(FakeArms(system)).wrong
    assert len(wrong) == 4
    assert all(line.startswith(f"{system}, ") for line in wrong)


@pytest.mark.parametrize("text", ["", 'rag_accel_bypassed_total{path="embed/EngineLost"} 2.0\n'])
def test_leaves_that_ran_plainly_are_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answer = httpx.Response(200, text=f"rag_accel_http_requests_waiting 0.0\n{text}")
    monkeypatch.setattr(serve.httpx, "get", lambda *_, **__: answer)
    if not text:
        serve._require_scheduled("http://served/metrics")
        return
    with pytest.raises(EngineError, match="ran plainly"):
        serve._require_scheduled("http://served/metrics")


class Echo:
    """An object that answers with its value."""

    async def ainvoke(self, value: Any) -> Any:
        return {"said": value}


@pytest.mark.parametrize("name", [objects.NO_OP, objects.RETRIEVAL])
async def test_an_object_gets_the_same_value_in_process_and_behind_the_endpoint(name: str) -> None:
    found = await load_in_process(Echo(), name, QUESTIONS, 3)
    transport = httpx.ASGITransport(make_endpoint(Echo(), name))
    async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
        for question, said in zip(QUESTIONS, found["answers"], strict=True):
            answer = await client.post("/invoke", json={objects.INPUTS[name]: question})
            assert json.dumps(answer.json()["output"], sort_keys=True) == said
            assert json.loads(said) == {"said": objects.value_of(name, question)}
        assert (await client.post("/invoke", json={"other": "a"})).status_code == 422
    assert len(found["latencies_s"]) == len(QUESTIONS)


@pytest.mark.processes
def test_the_chain_that_does_nothing_answers_alike_in_all_three_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "_questions", lambda count: QUESTIONS[:count])
    found = serve.run(True, serve.Sizes((objects.NO_OP,), TINY.alone, 4, TINY.loaded, 1))
    assert found.wrong == ()
    counts = [row.n for row in found.rows if row.metric == "different_answers"]
    assert counts == [3, 3, 3, 8, 8, 8]
