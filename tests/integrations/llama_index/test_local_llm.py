"""A local language model behind LlamaIndex: its text, streams, events, limits and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))

from fake_runner import tokenizer
from li_programs import run_in_loop
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from tiny_chat import TOKENS, generated, model

from llama_index_rag_accel import RagAccelLLM
from rag_accel import Accelerator, ConfigError

QUESTIONS = [f"Which of the documents says {number}?" for number in range(8)]


@pytest.fixture
def llm(accelerator: Accelerator) -> RagAccelLLM:
    return RagAccelLLM(model(), tokenizer=tokenizer(), max_tokens=TOKENS, accelerator=accelerator)


def _user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]


def test_the_text_is_that_of_generate_in_every_way(llm: RagAccelLLM) -> None:
    question = QUESTIONS[0]
    expected = generated(question)
    assert llm.complete(question).text == expected
    assert llm.chat(_user(question)).message.content == expected
    assert run_in_loop(llm.acomplete(question)).text == expected
    assert run_in_loop(llm.achat(_user(question))).message.content == expected


def test_an_argument_that_it_does_not_have_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        RagAccelLLM("some/model", kv_resue="full")
    text = str(caught.value)
    assert "a component has no such argument; at RagAccelLLM; found kv_resue" in text
    assert "did you mean 'kv_reuse'?" in text
    assert "chat_template" in text


def test_streams_give_the_same_text_in_pieces(llm: RagAccelLLM) -> None:
    question = QUESTIONS[1]

    async def pieces(stream: Any) -> list[Any]:
        return [piece async for piece in await stream]

    for found in (
        list(llm.stream_complete(question)),
        list(llm.stream_chat(_user(question))),
        run_in_loop(pieces(llm.astream_complete(question))),
        run_in_loop(pieces(llm.astream_chat(_user(question)))),
    ):
        assert len(found) > 3
        assert "".join(piece.delta or "" for piece in found) == generated(question)
        assert found[-1].additional_kwargs["completion_tokens"] == TOKENS


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (ChatMessage(role=MessageRole.TOOL, content="a"), "tool"),
        (ChatMessage(role=MessageRole.USER, blocks=[ImageBlock(image=b"a")]), "ImageBlock"),
    ],
)
def test_messages_it_cannot_take_are_refused_by_name(
    message: ChatMessage, found: str, llm: RagAccelLLM
) -> None:
    with pytest.raises(ConfigError, match=found):
        llm.chat([message])


def test_a_single_text_is_one_stop_string_however_it_is_given(
    llm: RagAccelLLM, accelerator: Accelerator
) -> None:
    word = generated(QUESTIONS[3])[5:8]
    expected = generated(QUESTIONS[3]).partition(word)[0]
    own = RagAccelLLM(
        model(), tokenizer=tokenizer(), max_tokens=TOKENS, stop=word, accelerator=accelerator
    )
    assert llm.complete(QUESTIONS[3], stop=[word]).text == expected
    assert llm.complete(QUESTIONS[3], stop=word).text == expected
    assert llm.chat(_user(QUESTIONS[3]), stop=word).message.content == expected
    assert own.complete(QUESTIONS[3]).text == expected
