"""Which parts a prompt with retrieved texts has, by its template and the order of its messages."""

from __future__ import annotations

import pytest
from fake_runner import TEMPLATE, tokenizer

from rag_accel.engine_api import (
    ChunkSpan,
    Message,
)
from rag_accel.engines.llm.local.text.prompting import Prompting

A = "The height of Mount Fuji is 3776 metres."
B = "A lane holds keys and values of one sequence."
WITH_DEFAULT = (
    "{% if messages[0].role != 'system' %}<|turn|>system\nBe helpful.</s>\n{% endif %}" + TEMPLATE
)
WITH_DATE = "<|turn|>date\n1 May</s>\n" + TEMPLATE
BARE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
STRIPPING = TEMPLATE.replace("m.content", "m.content | trim")
SHOUTING = TEMPLATE.replace("m.content", "m.content | upper")
#: a template that has no system's turn, and puts its content before the first other one
FOLDING = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|turn|>{{ m.role }}\n"
    "{% if system %}{{ system }}\n\n{% set system = '' %}{% endif %}{{ m.content }}</s>\n"
    "{% endif %}{% endfor %}<|turn|>assistant\n"
)


def passages(messages: list[Message]) -> list[ChunkSpan]:
    return [
        ChunkSpan(at, message.content.find(text), message.content.find(text) + len(text), text)
        for at, message in enumerate(messages)
        for text in (A, B)
        if text in message.content
    ]


def shown(template: str, *turns: tuple[str, str]) -> list[tuple[str, str]] | None:
    """Return kinds and texts of a prompt's segments."""
    messages = [Message(role, content) for role, content in turns]  # type: ignore[arg-type]
    prompting = Prompting(tokenizer(), template=template)
    found = prompting.segmented(messages, passages(messages), 4)
    if found is None:
        return None
    return [(one.kind, tokenizer().decode(one.ids)) for one in found.segments]


def test_the_head_ends_with_the_systems_turn() -> None:
    assert shown(TEMPLATE, ("system", "Be short."), ("user", f"{A}\n\nWell?")) == [
        ("head", "<|turn|>system\nBe short.</s>\n<|turn|>user\n"),
        ("chunk", A),
        ("glue", "\n\nWell?</s>\n<|turn|>assistant\n"),
    ]


def test_a_systems_turn_of_the_template_is_in_the_head() -> None:
    segments = shown(WITH_DEFAULT, ("user", f"{A}\n\nWell?"))
    assert segments
    assert segments[0] == ("head", "<|turn|>system\nBe helpful.</s>\n<|turn|>user\n")


def test_a_date_of_the_template_is_in_the_head() -> None:
    segments = shown(WITH_DATE, ("system", "Be short."), ("user", f"{A}\n\nWell?"))
    assert segments
    assert segments[0][1].startswith("<|turn|>date\n1 May")


def test_a_question_that_stands_first_is_behind_the_head() -> None:
    assert shown(TEMPLATE, ("system", "Be short."), ("user", f"Well?\n{A}\n\n{B}")) == [
        ("head", "<|turn|>system\nBe short.</s>\n<|turn|>user\n"),
        ("glue", "Well?\n"),
        ("chunk", A),
        ("glue", "\n\n"),
        ("chunk", B),
        ("glue", "</s>\n<|turn|>assistant\n"),
    ]


def test_a_systems_turn_with_a_text_is_behind_the_head() -> None:
    assert shown(TEMPLATE, ("system", f"Use it.\n\n{A}"), ("user", "Well?")) == [
        ("head", "<|turn|>system\n"),
        ("glue", "Use it.\n\n"),
        ("chunk", A),
        ("glue", "</s>\n<|turn|>user\nWell?</s>\n<|turn|>assistant\n"),
    ]


def test_a_history_is_behind_the_head() -> None:
    history = [("user", "Hello?"), ("assistant", "Hello.")]
    segments = shown(TEMPLATE, ("system", "Be short."), *history, ("user", f"{A} Well?"))
    assert segments
    assert [kind for kind, _ in segments] == ["head", "glue", "chunk", "glue"]
    assert segments[0][1] == "<|turn|>system\nBe short.</s>\n<|turn|>user\n"


def test_a_text_of_an_earlier_turn_is_one() -> None:
    segments = shown(TEMPLATE, ("user", f"{A} Well?"), ("assistant", "Yes."), ("user", "Why?"))
    assert segments
    assert [kind for kind, _ in segments] == ["head", "chunk", "glue"]


def test_a_template_that_strips_contents_moves_no_text() -> None:
    segments = shown(STRIPPING, ("system", " Be short. "), ("user", f" \n{A}\n\nWell? "))
    assert segments
    assert ("chunk", A) in segments


def test_a_template_without_a_systems_turn_has_it_in_the_head() -> None:
    segments = shown(FOLDING, ("system", "Be short."), ("user", f"{A}\n\nWell?"))
    assert segments
    assert segments[:2] == [("head", "<|turn|>user\nBe short.\n\n"), ("chunk", A)]


def test_a_template_without_anything_before_a_message_has_no_head() -> None:
    assert shown(BARE, ("user", f"{A}\n\nWell?")) == [("chunk", A), ("glue", "\n\nWell?\n")]


@pytest.mark.parametrize(
    "turns",
    [
        [("user", "Well?")],  # no text
        [("user", A)],  # nothing is asked
        [("system", "Be short."), ("user", f" {A}\n\n{B} \n")],
        [],
    ],
)
def test_a_prompt_without_segments_is_whole(turns: list[tuple[str, str]]) -> None:
    assert shown(TEMPLATE, *turns) is None


def test_a_template_that_rewrites_contents_makes_whole_prompts() -> None:
    assert shown(SHOUTING, ("user", f"{A}\n\nWell?")) is None


def test_a_last_message_that_is_a_text_is_computed() -> None:
    segments = shown(TEMPLATE, ("system", f"Use it.\n\n{A}"), ("user", B))
    assert segments
    assert [text for kind, text in segments if kind == "chunk"] == [A]


@pytest.mark.parametrize("template", [TEMPLATE, STRIPPING])
def test_a_passage_with_white_space_that_a_template_strips_is_the_rest(template: str) -> None:
    messages = [Message("user", "Well?"), Message("user", f" \n\n{A}"), Message("user", "Why?")]
    whole = ChunkSpan(1, 0, len(messages[1].content))
    found = Prompting(tokenizer(), template=template).segmented(messages, [whole], 4)
    assert found
    expected = A if template == STRIPPING else messages[1].content
    assert [tokenizer().decode(one.ids) for one in found.chunks] == [expected]


@pytest.mark.parametrize(
    "outside",
    [
        ChunkSpan(0, 0, 70),  # would reach into what follows its message
        ChunkSpan(0, -5, 10),
        ChunkSpan(0, 10, 5),
        ChunkSpan(0, 5, 5),
        ChunkSpan(-1, 0, 3),
        ChunkSpan(2, 0, 3),
    ],
)
def test_passages_outside_their_messages_are_none(outside: ChunkSpan) -> None:
    messages = [Message("user", f"{A}\n\nWell?"), Message("user", "It is asked. " * 9)]
    prompting = Prompting(tokenizer())
    assert prompting.segmented(messages, [outside], 4) is None
    beside = prompting.segmented(messages, [outside, *passages(messages)], 4)
    assert beside
    assert [tokenizer().decode(one.ids) for one in beside.chunks] == [A]
