"""Generation settings and templates that change on the objects of an adopted model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from fake_runner import tokenizer
from hf_callers import QUESTIONS, own_model, own_pipeline
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator


def _ends(llm: HuggingFacePipeline) -> None:
    llm.pipeline.model.generation_config.eos_token_id = [1, *range(40, 300)]


def _penalty(llm: HuggingFacePipeline) -> None:
    llm.pipeline.model.generation_config.repetition_penalty = 1.5


def _other_settings(llm: HuggingFacePipeline) -> None:
    settings = copy.deepcopy(llm.pipeline.model.generation_config)
    settings.repetition_penalty = 1.5
    llm.pipeline.model.generation_config = settings


def _fewer_tokens(llm: HuggingFacePipeline) -> None:
    llm.pipeline._forward_params["max_new_tokens"] = 1


def _truncation(llm: HuggingFacePipeline) -> None:
    llm.pipeline._preprocess_params["truncation"] = True
    llm.pipeline.tokenizer.model_max_length = 4


CHANGES: dict[str, Callable[[HuggingFacePipeline], None]] = {
    "end tokens": _ends,
    "penalty": _penalty,
    "other settings": _other_settings,
    "fewer tokens": _fewer_tokens,
    "truncation": _truncation,
}


def made() -> HuggingFacePipeline:
    return HuggingFacePipeline(pipeline=own_pipeline(own_model()))


def answers(llm: Any) -> list[Any]:
    return [llm.invoke(QUESTIONS[0]), *llm.batch(QUESTIONS[:3]), [*llm.stream(QUESTIONS[1])]]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_pipeline_follows_what_changes_on_its_objects(
    change: Callable[[HuggingFacePipeline], None], accelerator: Accelerator
) -> None:
    llm, plain = made(), made()
    fast = accelerate(llm, accelerator=accelerator)
    before = answers(plain)
    assert answers(fast) == before
    change(llm)
    change(plain)
    assert answers(plain) != before
    assert answers(fast) == answers(plain)
    with activate(accelerator=accelerator):
        assert answers(llm) == answers(plain)


def _turns(chat: ChatHuggingFace) -> None:
    chat.tokenizer.chat_template = chat.tokenizer.chat_template.replace("turn", "s")


def test_a_chat_model_follows_its_template(accelerator: Accelerator) -> None:
    chat, plain = (
        ChatHuggingFace(llm=made(), tokenizer=copy.deepcopy(tokenizer()), model_id="tiny")
        for _ in range(2)
    )
    fast = accelerate(chat, accelerator=accelerator)
    before = plain.invoke(QUESTIONS[0]).content
    assert fast.invoke(QUESTIONS[0]).content == before
    _turns(chat)
    _turns(plain)
    assert plain.invoke(QUESTIONS[0]).content != before
    assert fast.invoke(QUESTIONS[0]).content == plain.invoke(QUESTIONS[0]).content
