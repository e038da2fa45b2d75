"""Libraries that evaluate answers, inside activate(), by a judge whose endpoint limits its rate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ragas")
pytest.importorskip("deepeval")

import ragas
from deepeval import evaluate
from deepeval.evaluate.configs import AsyncConfig, CacheConfig, DisplayConfig
from deepeval.metrics import GEval
from deepeval.models import DeepEvalBaseLLM
from deepeval.test_case import LLMTestCase, SingleTurnParams
from langchain_openai import ChatOpenAI
from limited_server import LimitedServer, Rate
from pydantic import SecretStr

from langchain_rag_accel import activate

pytestmark = [
    pytest.mark.timeout(120),
    # Of the libraries and their clients, which nobody closes.
    pytest.mark.filterwarnings("ignore"),
]

SAMPLES = 60
RATE = Rate(15.0, 5)


def verdict(prompt: str) -> str:
    """Return what a judge says; each library reads its own fields."""
    return json.dumps({"reason": "it says so", "verdict": 1, "score": 10})


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    with LimitedServer(RATE, answer_s=0.01, say=verdict) as made:
        yield made


def judge_at(server: LimitedServer) -> ChatOpenAI:
    url, key = server.base_url, SecretStr("k")
    return ChatOpenAI(model="m", base_url=url, api_key=key, max_retries=2)


def check(server: LimitedServer) -> None:
    """Check that calls waited for their turn: plain, some are refused as often as clients ask."""
    assert server.num_refused > 0
    assert server.num_calls <= 2.5 * SAMPLES


def test_ragas_loses_no_sample(server: LimitedServer) -> None:
    from ragas.llms import LangchainLLMWrapper
    from ragas.metrics import AspectCritic
    from ragas.run_config import RunConfig

    samples = [{"user_input": f"question {n}", "response": "yes"} for n in range(SAMPLES)]
    critic = AspectCritic(
        name="fine", definition="Is it fine?", llm=LangchainLLMWrapper(judge_at(server))
    )
    dataset = ragas.EvaluationDataset.from_list(samples)
    all_at_once = RunConfig(max_workers=SAMPLES, max_retries=1)  # no retries but the client's
    with activate():
        found = ragas.evaluate(
            dataset, metrics=[critic], run_config=all_at_once, show_progress=False
        )
    assert list(found["fine"]) == [1] * SAMPLES
    check(server)


class Judge(DeepEvalBaseLLM):
    """A model of LangChain as deepeval takes it."""

    def __init__(self, model: ChatOpenAI) -> None:
        self.chat = model
        super().__init__("judge")

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        return self.chat

    def get_model_name(self, *args: Any, **kwargs: Any) -> str:
        return "judge"

    def generate(self, prompt: str) -> str:
        return str(self.chat.invoke(prompt).content)

    async def a_generate(self, prompt: str) -> str:
        return str((await self.chat.ainvoke(prompt)).content)


def test_deepeval_loses_no_case(
    server: LimitedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where it keeps what it has found
    cases = [LLMTestCase(input=f"question {n}", actual_output="yes") for n in range(SAMPLES)]
    metric = GEval(
        name="fine",
        evaluation_steps=["Is it fine?"],
        evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT],
        model=Judge(judge_at(server)),
    )
    shown = DisplayConfig(show_indicator=False, print_results=False)
    options = {"display_config": shown, "cache_config": CacheConfig(write_cache=False)}
    with activate():
        found = evaluate(
            cases, [metric], async_config=AsyncConfig(max_concurrent=SAMPLES), **options
        )
    assert [result.metrics_data[0].score for result in found.test_results] == [1.0] * SAMPLES
    check(server)
