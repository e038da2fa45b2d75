"""Calls of local language models count as scheduled, and read the options for such models."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

import tiny_chat
from fake_runner import tokenizer
from hf_callers import QUESTIONS, own_model, own_pipeline
from langchain_huggingface import HuggingFacePipeline

from langchain_rag_accel import ChatRagAccel, accelerate, coverage, explain
from rag_accel import Accelerator


def parts(program: Any) -> dict[str, tuple[str, ...]]:
    return {one.option: one.parts for one in coverage(program).options}


def test_a_list_of_prompts_is_one_scheduled_call(accelerator: Accelerator) -> None:
    llm = HuggingFacePipeline(pipeline=own_pipeline(own_model()))
    fast = accelerate(llm, accelerator=accelerator)
    plain = llm.batch(QUESTIONS)
    with coverage(fast) as seen:
        assert fast.batch(QUESTIONS) == plain
    assert seen.scheduled == 1
    assert seen.borrowed == 0
    assert parts(fast)["adopt_llm"] == ("program: HuggingFacePipeline",)


def test_a_pipeline_that_is_not_adopted_is_borrowed() -> None:
    llm = HuggingFacePipeline(pipeline=own_pipeline(own_model()))
    with Accelerator(strict=True, adopt_llm="off") as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        with coverage(fast) as seen:
            fast.invoke(QUESTIONS[0])
    assert (seen.scheduled, seen.borrowed, seen.passed_by) == (0, 1, 0)


def test_a_component_is_scheduled_and_reads_the_reuse() -> None:
    with Accelerator(strict=True, kv_reuse="full") as accelerator:
        model = ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), max_tokens=4)
        fast = accelerate(model | str, accelerator=accelerator)
        with coverage(fast) as seen:
            fast.invoke("Which?")
        assert (seen.scheduled, seen.borrowed, seen.passed_by) == (1, 0, 0)
        assert parts(fast)["kv_reuse"] == ("program.0: ChatRagAccel",)
        assert "option" not in explain(fast)
