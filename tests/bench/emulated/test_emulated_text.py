"""What the emulated accelerator writes: pure, counted by words, cut by stop and max_tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.emulated.text import (
    MAX_TOKENS,
    count_tokens,
    shared_prefix_tokens,
    split_tokens,
    write_script,
)
from rag_accel.engine_api import GenerationInput, Message
from rag_accel.errors import ConfigError, EngineOutputError


def ask(text: str, **fields: object) -> GenerationInput:
    return GenerationInput((Message("user", text),), **fields)  # type: ignore[arg-type]


def write(request: GenerationInput, answer: str | None = None) -> str:
    respond = None if answer is None else lambda messages: answer
    return write_script(request, respond, default_max_tokens=8).output().text


@given(st.text())
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(split_tokens(text)) == text


@given(st.text(alphabet="ab \n\t"))
def test_there_is_one_token_per_word(text: str) -> None:
    assert len(split_tokens(text)) == max(len(text.split()), 1 if text else 0)


def test_prompt_tokens_are_the_words_of_all_messages() -> None:
    turns = (Message("system", "be  brief"), Message("user", "what\nis rag?"), Message("user", ""))
    assert count_tokens(turns) == 5


def test_a_shorter_default_answer_is_a_prefix_of_a_longer_one() -> None:
    assert write(ask("q", max_tokens=80)).startswith(write(ask("q", max_tokens=33)) + " ")


@pytest.mark.parametrize(
    "other",
    [
        ask("another"),
        ask("q", options={"seed": 2}),
        GenerationInput((Message("system", "q"),)),
        GenerationInput((Message("user", "q"), Message("user", ""))),
    ],
)
def test_the_default_answer_depends_on_prompt_and_options(other: GenerationInput) -> None:
    assert write(other) != write(ask("q"))


def test_a_scripted_answer_is_cut_at_max_tokens_and_says_so() -> None:
    request = ask("q", max_tokens=2)
    script = write_script(request, lambda messages: "one two three", default_max_tokens=8)
    assert script.output().text == "one two"
    assert script.output().finish_reason == "length"
    assert script.output().completion_tokens == 2


def test_the_answer_ends_before_the_first_stop_text() -> None:
    assert write(ask("q", stop=("three", "two")), "one two three") == "one "


def test_respond_must_return_text() -> None:
    with pytest.raises(EngineOutputError, match="int"):
        write_script(ask("q"), lambda messages: 3, default_max_tokens=8)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("limit", [0, -1, MAX_TOKENS + 1])
def test_max_tokens_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to {MAX_TOKENS}"):
        write(ask("q", max_tokens=limit))


@pytest.mark.parametrize(
    ("cached", "prompt", "shared"),
    [
        ([("system", "a b")], [("system", "a b"), ("user", "c d")], 2),
        ([("system", "a b")], [("system", "a b c d")], 2),
        ([("system", "a b"), ("user", "c d")], [("system", "a b"), ("user", "c x")], 3),
        ([("system", "a b"), ("user", "c")], [("system", "a x"), ("user", "c")], 1),
        ([("system", "a b")], [("user", "a b")], 0),
        ([("user", "a b c")], [("user", "a b")], 2),
    ],
)
def test_the_shared_prefix_ends_at_the_first_difference(
    cached: list[tuple[str, str]], prompt: list[tuple[str, str]], shared: int
) -> None:
    old = [Message(role, text) for role, text in cached]  # type: ignore[arg-type]
    new = [Message(role, text) for role, text in prompt]  # type: ignore[arg-type]
    assert shared_prefix_tokens(old, new) == shared
