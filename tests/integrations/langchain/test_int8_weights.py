"""Answers by int8 weights say so in LangChain, and are nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bfloat16_kit import DTYPES

pytest.importorskip("transformers")

import torch
from fake_runner import tokenizer
from hf_callers import own_model, own_pipeline
from int8_kit import give_folders
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.prompts import PromptTemplate
from tiny_chat import TOKENS, generated, model

from langchain_rag_accel import ChatRagAccel, accelerate, explain
from rag_accel import Accelerator
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.model import runner_choice

PROMPT = PromptTemplate.from_template("Which of the documents says {input}?")
QUESTION = "Which of the documents says it?"
pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedWeightsWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for weights and verdicts."""
    give_folders(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def chat(accelerator: Accelerator, **bounds: Any) -> ChatRagAccel:
    return ChatRagAccel(
        model=model(),
        tokenizer=tokenizer(),
        max_tokens=TOKENS,
        pool_bytes=1 << 24,
        accelerator=accelerator,
        **bounds,
    )


def said(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: metadata[name] for name in ("weights", "exact") if name in metadata}


def test_an_answer_says_what_computed_it(accelerator: Accelerator) -> None:
    rounded = chat(accelerator, weights="int8")
    expected = {"weights": "int8", "exact": False}
    assert said(rounded.invoke(QUESTION).response_metadata) == expected
    assert said(asyncio.run(rounded.ainvoke(QUESTION)).response_metadata) == expected
    *_, last = (chunk for chunk in rounded.stream(QUESTION) if chunk.response_metadata)
    assert said(last.response_metadata) == expected
    described = rounded._calls.describe(accelerator)
    assert "int8 weights, approximate (not checked: rag_accel.fidelity.check(" in described


def test_another_component_of_the_same_model_stays_exact(accelerator: Accelerator) -> None:
    rounded, own = chat(accelerator, weights="int8"), chat(accelerator)
    rounded.invoke(QUESTION)
    answer = own.invoke(QUESTION)
    assert answer.content == generated(QUESTION)
    assert said(answer.response_metadata) == {}
    assert rounded._calls.model is not own._calls.model


def test_batches_of_both_at_once_stay_apart(accelerator: Accelerator) -> None:
    questions: list[Any] = [f"Which of the documents says {number}?" for number in range(6)]
    rounded, own = chat(accelerator, weights="int8"), chat(accelerator)

    async def ask() -> tuple[list[Any], list[Any]]:
        return await asyncio.gather(rounded.abatch(questions), own.abatch(questions))

    near, exact = asyncio.run(ask())
    assert [answer.content for answer in exact] == [generated(each) for each in questions]
    assert all(said(answer.response_metadata) == {} for answer in exact)
    assert all(answer.response_metadata["weights"] == "int8" for answer in near)


def pipeline_class() -> Any:
    return pytest.importorskip("langchain_huggingface").HuggingFacePipeline


class Infos(BaseCallbackHandler):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self.found += [one.generation_info for group in response.generations for one in group]


def adopting(held: Any, **bounds: Any) -> Accelerator:
    return Accelerator(llm=LocalLLM(held, tokenizer(), pool_bytes=1 << 24, **bounds))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_adopted_model_answers_by_int8_weights_and_says_it(dtype: torch.dtype) -> None:
    held = own_model(dtype)
    llm = pipeline_class()(pipeline=own_pipeline(held, return_full_text=False))
    infos = Infos()
    with adopting(held, weights="int8") as accelerator:
        made = accelerate(PROMPT | llm, accelerator=accelerator)
        assert "owned engine (int8 weights, approximate)" in explain(made)
        made.invoke("abc", config={"callbacks": [infos]})
        [*made.stream("abc", config={"callbacks": [infos]})]
        assert accelerator.bypassed == {}
        assert "int8 weights, approximate (not checked" in explain(made)
    assert [said(info) for info in infos.found] == [{"weights": "int8", "exact": False}] * 2


def test_a_model_that_cannot_have_int8_weights_runs_plainly_and_elsewhere_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = own_model()
    llm = pipeline_class()(pipeline=own_pipeline(held, return_full_text=False))
    expected = (PROMPT | llm).invoke("abc")
    with monkeypatch.context() as patched, adopting(held, weights="int8") as accelerator:
        patched.setattr(runner_choice.importlib.util, "find_spec", lambda name: None)
        made = accelerate(PROMPT | llm, accelerator=accelerator)
        assert made.invoke("abc") == expected
        assert "plain: its engine could not be made: the model is not run with int8" in explain(
            made
        )
    with adopting(held) as accelerator:
        made = accelerate(PROMPT | llm, accelerator=accelerator)
        assert made.invoke("abc") == expected
        assert "owned engine (exact)" in explain(made)
