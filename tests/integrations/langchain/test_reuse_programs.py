"""Programs of LangChain's shapes compute no text twice, whatever its place in their prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lc_reuse_programs as programs
import pytest
import reuse_kit
import tiny_chat
from fake_runner import tokenizer
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from lc_reuse_programs import PROGRAMS, TEXTS, Program
from reuse_kit import ReusedTexts, num_tokens, reused

from langchain_rag_accel import ChatRagAccel, accelerate, activate
from rag_accel import Accelerator, ConfigError

located = reuse_kit.located

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)


def chat(accelerator: Accelerator, **options: Any) -> ChatRagAccel:
    return ChatRagAccel(
        model=tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        accelerator=accelerator,
        **{"kv_reuse": "full", **options},
    )


def tokens(*names: str) -> int:
    return num_tokens(*(TEXTS[name] for name in names))


@each_program
def test_texts_are_found_and_not_computed_again(
    accelerator: Accelerator, located: list[list[str]], program: Callable[[Any], Program]
) -> None:
    fast = accelerate(program(chat(accelerator)), accelerator=accelerator)
    fast.invoke("abc")
    assert reused(accelerator) == 0
    fast.invoke("cab")
    assert [set(one) for one in located] == [set(TEXTS.values())] * 2
    assert reused(accelerator) == tokens(*"abc")


def test_without_an_accelerated_run_nothing_is_known_of_texts(
    accelerator: Accelerator, located: list[list[str]]
) -> None:
    plain = programs.with_numbers(chat(accelerator))
    assert plain.invoke("abc")
    assert plain.invoke("cab")
    assert located == [[], []]
    assert reused(accelerator) == 0


def test_texts_that_a_compressor_wrote_are_found(
    accelerator: Accelerator, located: list[list[str]]
) -> None:
    fast = accelerate(programs.extracted(chat(accelerator)), accelerator=accelerator)
    fast.invoke("a")
    assert located == [["Its height is in metres, as it says."]]


def test_texts_that_a_function_retrieved_are_found(
    accelerator: Accelerator, located: list[list[str]]
) -> None:
    with activate(accelerator):
        fast = accelerate(programs.nested(chat(accelerator)), accelerator=accelerator)
        fast.invoke("abc")
        fast.invoke("bca")
    assert [set(one) for one in located] == [set(TEXTS.values())] * 2
    assert reused(accelerator) == tokens(*"abc")


class TestReusedTexts(ReusedTexts):
    texts, edit = TEXTS, ("metres", "meters")

    def program(self, accelerator: Accelerator) -> Any:
        return accelerate(programs.with_numbers(chat(accelerator)), accelerator=accelerator)

    def ask(self, program: Any, question: str) -> Any:
        return program.invoke(question)

    async def aask(self, program: Any, question: str) -> Any:
        return await program.ainvoke(question)


async def test_streams_reuse_what_others_computed(accelerator: Accelerator) -> None:
    fast = accelerate(programs.stuffed(chat(accelerator)), accelerator=accelerator)
    list(fast.stream("abc"))
    assert reused(accelerator) == 0
    list(fast.stream("ba"))
    [piece async for piece in fast.astream("cb")]
    assert reused(accelerator) == tokens(*"bac")  # b had seen a alone


# Documents that a call names


MESSAGES = [SystemMessage("Be brief."), HumanMessage(f"{TEXTS['a']} {TEXTS['b']} Well?")]
AGAIN = [SystemMessage("Be brief."), HumanMessage(f"{TEXTS['b']} {TEXTS['a']} Well?")]
NAMED = [Document(page_content=TEXTS["a"]), TEXTS["b"]]


def test_a_model_may_be_bound_to_documents(accelerator: Accelerator) -> None:
    bound = chat(accelerator).bind(documents=NAMED)
    bound.invoke(MESSAGES)
    bound.invoke(AGAIN)
    assert reused(accelerator) == tokens("a", "b")


def test_streams_and_batches_may_name_documents(accelerator: Accelerator) -> None:
    model = chat(accelerator)
    list(model.stream(MESSAGES, documents=NAMED))
    list(model.stream(AGAIN, documents=NAMED))
    model.batch([MESSAGES, AGAIN], documents=NAMED)
    model.generate([MESSAGES, AGAIN], documents=NAMED)
    assert reused(accelerator) == 5 * tokens("a", "b")


@pytest.mark.parametrize("documents", ["one string", {"a": "text"}, 7])
def test_documents_that_are_no_list_are_refused(accelerator: Accelerator, documents: Any) -> None:
    with pytest.raises(ConfigError, match="named as a list"):
        chat(accelerator).invoke("Well?", documents=documents)


def test_what_is_no_document_is_refused(accelerator: Accelerator) -> None:
    with pytest.raises(ConfigError, match=r"documents\[1\]"):
        chat(accelerator).invoke("Well?", documents=["a", 3])


@pytest.mark.parametrize("documents", [None, [], [""], ["a"], ["nowhere in the prompt, this one"]])
def test_documents_that_are_in_no_prompt_change_nothing(
    accelerator: Accelerator, documents: list[str] | None
) -> None:
    expected = chat(accelerator, kv_reuse="exact").invoke(MESSAGES)
    found = chat(accelerator).invoke(MESSAGES, documents=documents)
    assert found.content == expected.content
    assert kv_reuse(found) == 0


@pytest.mark.parametrize(
    "messages",
    [
        [HumanMessage(f"{TEXTS['a']}\n\n{TEXTS['b']}")],  # nothing else
        [SystemMessage("Be brief."), HumanMessage(f"  {TEXTS['a']} ")],  # a text is what is asked
    ],
)
def test_a_prompt_of_documents_only_is_computed(
    accelerator: Accelerator, messages: list[Any]
) -> None:
    expected = chat(accelerator, kv_reuse="exact").invoke(messages)
    model = chat(accelerator)
    for _ in range(2):
        found = model.invoke(messages, documents=NAMED)
        assert found.content == expected.content
        assert kv_reuse(found) == 0


def kv_reuse(message: AIMessage) -> int:
    return message.response_metadata["kv_reuse"]["reused_tokens"]
