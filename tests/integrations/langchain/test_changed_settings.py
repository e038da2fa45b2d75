"""Generation settings and chat templates that change on the program's own objects."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer
from tiny_chat import TOKENS

from langchain_rag_accel import ChatRagAccel
from rag_accel import Accelerator, ConfigError

QUESTION = "Which of the documents says how high it is?"


class Program:
    """A model and a tokenizer of its own, and what ``generate`` makes of a question."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.model = copy.deepcopy(tiny_chat.model())
        self.tokenizer = copy.deepcopy(tokenizer())
        self._accelerator = accelerator

    def chat(self, **options: Any) -> ChatRagAccel:
        return ChatRagAccel(
            model=self.model,
            tokenizer=self.tokenizer,
            max_tokens=TOKENS,
            accelerator=self._accelerator,
            **options,
        )

    def generated(self) -> str:
        """Return the text, without the token that ends it, which may be one of any text here."""
        ids, ends = self.generated_ids(), self.model.generation_config.eos_token_id
        if isinstance(ends, list) and ids[-1] in ends:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def generated_ids(self) -> list[int]:
        turns = [{"role": "user", "content": QUESTION}]
        made = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        ids = torch.tensor([made["input_ids"]])
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return found[0, ids.shape[1] :].tolist()


@pytest.fixture
def program(accelerator: Accelerator) -> Program:
    return Program(accelerator)


def _ends(program: Program) -> None:
    """End answers with the third token of the one that is given now."""
    program.model.generation_config.eos_token_id = [1, program.generated_ids()[2]]


def _penalty(program: Program) -> None:
    program.model.generation_config.repetition_penalty = 1.5


def _template(program: Program) -> None:
    program.tokenizer.chat_template = program.tokenizer.chat_template.replace("turn", "s")


CHANGES: dict[str, Callable[[Program], None]] = {
    "end tokens": _ends,
    "repetition penalty": _penalty,
    "chat template": _template,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("keeps", [False, True])
def test_a_new_component_follows_settings_that_were_changed(
    change: Callable[[Program], None], keeps: bool, program: Program
) -> None:
    first = program.chat()
    before = program.generated()
    assert first.invoke(QUESTION).content == before
    change(program)
    assert program.generated() != before
    if not keeps:
        del first
        gc.collect()
    assert program.chat().invoke(QUESTION).content == program.generated()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_component_whose_settings_were_changed_refuses_by_name(
    change: Callable[[Program], None], program: Program
) -> None:
    chat = program.chat()
    chat.invoke(QUESTION)
    change(program)
    with pytest.raises(ConfigError, match="was changed"):
        chat.invoke(QUESTION)


def test_settings_that_no_answer_depends_on_may_change(program: Program) -> None:
    chat = program.chat(chat_template=program.tokenizer.chat_template)
    before = chat.invoke(QUESTION).content
    program.model.generation_config.pad_token_id = 1
    program.model.generation_config.temperature = 0.3
    _template(program)  # the component has its own
    program.tokenizer.padding_side = "left"
    assert chat.invoke(QUESTION).content == before
