"""Prompts that runs of a program have shown: what is literal, and where values stand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import Message
from rag_accel.leaves import recorded_prompts
from rag_accel.leaves.recorded_prompts import RecordedPrompt, is_beginning

SYSTEM = Message("system", "Answer by the documents, and say so where they tell nothing.")
TEXTS = st.text("abc x\n", min_size=0, max_size=40)


def prompt(question: str, documents: str, turns: tuple[Message, ...] = ()) -> list[Message]:
    return [SYSTEM, *turns, Message("user", f"Question: {question}\nDocuments: {documents}")]


def turns(text: str) -> tuple[Message, ...]:
    return (Message("user", f"I like {text}."), Message("assistant", f"So do I, {text}."))


def recorded(*runs: tuple[str, str], **more: Any) -> RecordedPrompt:
    found = RecordedPrompt(**more)
    for question, documents in runs:
        told = turns(question)
        values = {"question": question, "history": told}
        found.learn(prompt(question, documents, told), values)
    return found


def test_two_runs_of_different_inputs_show_literals_and_slots() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    values = {"question": "the ferry", "history": turns("ferries")}
    assert found.beginning(values) == (
        SYSTEM,
        *turns("ferries"),
        Message("user", "Question: the ferry"),
    )


@pytest.mark.parametrize(
    "runs", [[], [("the tower", "one")], [("the tower", "one"), ("the tower", "two")]]
)
def test_fewer_runs_or_equal_inputs_show_nothing(runs: list[tuple[str, str]]) -> None:
    found = recorded(*runs)
    assert found.beginning({"question": "the ferry", "history": turns("ferries")}) == ()


def test_a_beginning_ends_before_a_value_that_is_not_known() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    assert found.beginning({"history": turns("ferries")}) == (
        SYSTEM,
        *turns("ferries"),
        Message("user", "Question: "),
    )
    assert found.beginning({"question": "the ferry"}) == ()  # all runs have the rest in common


def test_conversations_of_other_lengths_fit() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    longer = turns("ferries") + turns("boats")
    whole = prompt("the ferry", "three", longer)
    beginning = found.beginning({"question": "the ferry", "history": longer})
    assert len(beginning) == 6
    assert is_beginning(beginning, whole)


def test_a_record_only_gets_shorter() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    found.learn([SYSTEM, Message("user", "Now otherwise")], {"question": "the ferry"})
    values = {"question": "the ferry", "history": turns("ferries")}
    assert found.beginning(values) == ()


def test_a_record_of_one_run_holds_none_of_its_texts() -> None:
    found = recorded(("a secret question", "a secret document of this run alone"))
    assert "secret" not in repr(found)


def test_a_record_that_does_not_come_true_rests_and_is_made_anew() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    values = {"question": "the ferry", "history": turns("ferries")}
    for is_hit in (True, False, True, False):
        assert found.beginning(values) != ()
        found.judge(is_hit)
    assert found.beginning(values) == ()
    for number in range(16):
        found.learn(*_run(number))
        assert found.beginning(values) == ()
    for number in range(2):
        found.learn(*_run(number))
    assert found.beginning(values) != ()


def _run(number: int) -> tuple[list[Message], dict[str, Any]]:
    question = f"number {number}"
    told = turns(question)
    return prompt(question, f"text {number}", told), {"question": question, "history": told}


def test_one_miss_of_many_does_not_drop_a_record() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    for number in range(40):
        found.judge(number % 8 != 7)
    assert found.beginning({"question": "the ferry", "history": turns("ferries")}) != ()


def test_of_a_megabyte_only_the_beginning_is_read() -> None:
    found = RecordedPrompt()
    for question in ("the tower", "the bridge"):
        found.learn([Message("user", f"{question} " + "x" * (1 << 20))], {"question": question})
    (message,) = found.beginning({"question": "the ferry"})
    assert len(message.content) <= recorded_prompts.MOST_CHARACTERS + len("the ferry")


def test_a_text_that_stands_everywhere_is_read_within_bounds() -> None:
    found = RecordedPrompt()
    for question in ("aaa", "aba"):
        found.learn([Message("user", question * 20_000)], {"question": question})
    (message,) = found.beginning({"question": "xyz"})
    assert len(message.content) <= 3 * recorded_prompts.MOST_ITEMS


@given(
    literals=st.lists(TEXTS, min_size=2, max_size=5),
    values=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=4),
    documents=st.tuples(TEXTS, TEXTS, TEXTS),
)
def test_a_beginning_of_runs_of_one_template_is_the_third_run_s(
    literals: list[str], values: list[tuple[str, str, str]], documents: tuple[str, str, str]
) -> None:
    # Numbers keep texts apart: a value that stands in a literal by chance may cut the record.
    def run(at: int) -> tuple[list[Message], dict[str, str]]:
        told = {f"v{place}": f"<{place}{each[at]}{at}>" for place, each in enumerate(values)}
        pieces = [*told.values()]
        text = "".join(
            f"{literal}{piece}" for literal, piece in zip(literals, pieces, strict=False)
        )
        return [SYSTEM, Message("user", f"{text}[{at}{documents[at]}]")], told

    found = RecordedPrompt()
    for at in range(2):
        found.learn(*run(at))
    whole, told = run(2)
    beginning = found.beginning(told)
    assert is_beginning(beginning, whole)
    least = "".join(f"{one}{two}" for one, two in zip(literals, told.values(), strict=False))
    assert beginning[-1].content.startswith(least)


@given(one=TEXTS, other=TEXTS)
def test_what_two_texts_have_in_common(one: str, other: str) -> None:
    length = recorded_prompts._common_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or one == other


def test_a_prompt_of_literals_and_values_alone_is_known_as_a_whole() -> None:
    found = RecordedPrompt()
    for text in ("one", "two"):
        values = {"question": f"the {text}", "document 0.0": f"found {text}"}
        found.learn(prompt(*values.values()), values)
    known = {"question": "the ferry", "document 0.0": "found three"}
    assert list(found.whole(known)) == prompt("the ferry", "found three")
    assert found.whole({"question": "the ferry"}) == ()


def test_a_prompt_that_ends_with_anything_else_is_not_known_as_a_whole() -> None:
    found = recorded(("the tower", "one"), ("the bridge", "two"))
    assert found.whole({"question": "the ferry", "history": turns("ferries")}) == ()


def test_a_prompt_that_goes_on_once_is_not_known_as_a_whole_any_more() -> None:
    found = RecordedPrompt()
    for text, end in (("one", ""), ("two", ""), ("six", " and more")):
        values = {"question": f"the {text}"}
        found.learn([Message("user", f"Of the {text}{end}")], values)
    assert found.whole({"question": "the ferry"}) == ()


def test_a_prompt_beyond_the_bounds_is_not_known_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_prompts, "MOST_CHARACTERS", 8)
    found = RecordedPrompt()
    for text in ("one", "two"):
        found.learn([Message("user", f"{text}, and then some")], {"question": text})
    assert found.whole({"question": "six"}) == ()
