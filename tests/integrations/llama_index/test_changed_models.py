"""Settings that change on the objects of an adopted LLM of Hugging Face's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llama_index.llms.huggingface")

from fake_runner import tokenizer
from hf_callers import GREEDY, QUESTIONS, TOKENS, own_model
from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator


def _ends(llm: HuggingFaceLLM) -> None:
    llm._model.generation_config.eos_token_id = [1, *range(40, 300)]


def _penalty(llm: HuggingFaceLLM) -> None:
    llm._model.generation_config.repetition_penalty = 1.5


def _other_settings(llm: HuggingFaceLLM) -> None:
    settings = copy.deepcopy(llm._model.generation_config)
    settings.repetition_penalty = 1.5
    llm._model.generation_config = settings


def _fewer_tokens(llm: HuggingFaceLLM) -> None:
    llm.max_new_tokens = 1


def _arguments(llm: HuggingFaceLLM) -> None:
    llm.generate_kwargs["repetition_penalty"] = 1.5


def _template(llm: HuggingFaceLLM) -> None:
    llm._tokenizer.chat_template = llm._tokenizer.chat_template.replace("turn", "s")


CHANGES: dict[str, Callable[[HuggingFaceLLM], None]] = {
    "end tokens": _ends,
    "penalty": _penalty,
    "other settings": _other_settings,
    "fewer tokens": _fewer_tokens,
    "arguments": _arguments,
    "chat template": _template,
}


def made() -> HuggingFaceLLM:
    return HuggingFaceLLM(
        model=own_model(),
        tokenizer=copy.deepcopy(tokenizer()),
        max_new_tokens=TOKENS,
        generate_kwargs=dict(GREEDY),
        context_window=2048,
    )


def answers(llm: Any) -> list[Any]:
    messages = [ChatMessage(content=QUESTIONS[1])]
    return [
        llm.complete(QUESTIONS[0]).text,
        llm.chat(messages).message.content,
        [one.delta for one in llm.stream_chat(messages)],
    ]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_llm_follows_what_changes_on_its_objects(
    change: Callable[[HuggingFaceLLM], None], accelerator: Accelerator
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
