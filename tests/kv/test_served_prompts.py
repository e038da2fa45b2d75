"""What a server is told of a prompt's texts, and what an answer says of them."""

from __future__ import annotations

from typing import Any

import pytest

from rag_accel.engine_api import ChunkSpan, GenerationInput, Message
from rag_accel.kv.reuse_request import MOST_TEXTS, question_digest
from rag_accel.kv.served_prompts import answered_texts, reuse_request_of, served_report

SYSTEM = Message("system", "Answer.")


def prompt(*messages: Message, spans: list[tuple[int, int, int]]) -> GenerationInput:
    return GenerationInput(messages, chunk_spans=tuple(ChunkSpan(*span) for span in spans))


def test_texts_are_named_in_the_order_of_the_prompt() -> None:
    given = prompt(SYSTEM, Message("user", "By: abc def?"), spans=[(1, 8, 11), (1, 4, 7)])
    found = reuse_request_of(given, "full", namespace="tenant")
    assert found is not None
    assert (found.texts, found.before, found.namespace) == (("abc", "def"), "By: ", "tenant")
    assert found.question == ""


def test_of_overlapping_texts_the_first_counts() -> None:
    given = prompt(Message("user", "abcdef ghi?"), spans=[(0, 3, 9), (0, 0, 6), (0, 7, 10)])
    found = reuse_request_of(given, "full")
    assert found is not None
    assert (found.texts, found.before) == (("abcdef", "ghi"), "")


@pytest.mark.parametrize(
    ("messages", "span", "before"),
    [
        ((SYSTEM, Message("user", "Hi: text?")), (1, 4, 8), "Hi: "),
        ((Message("system", "By text."), Message("user", "What?")), (0, 3, 7), "By "),
        (
            (
                SYSTEM,
                Message("user", "First?"),
                Message("assistant", "Yes."),
                Message("user", "text?"),
            ),
            (3, 0, 4),
            "First?",
        ),
    ],
)
def test_head_ends_before_the_first_message_of_a_turn_or_text(
    messages: tuple[Message, ...], span: tuple[int, int, int], before: str
) -> None:
    found = reuse_request_of(prompt(*messages, spans=[span]), "full")
    assert found is not None
    assert (found.texts, found.before) == (("text",), before)


@pytest.mark.parametrize(
    "spans", [[], [(0, 0, 4)], [(1, 0, 4)], [(0, -1, 2)], [(0, 2, 2)], [(0, 0, 40)]]
)
def test_nothing_is_said_without_texts_beside_the_question(
    spans: list[tuple[int, int, int]],
) -> None:
    assert reuse_request_of(prompt(Message("user", "text "), spans=spans), "full") is None


def test_number_of_texts_is_bounded() -> None:
    count = MOST_TEXTS + 5
    given = prompt(
        Message("user", "abcd " * count + "?"),
        spans=[(0, 5 * at, 5 * at + 4) for at in range(count)],
    )
    found = reuse_request_of(given, "full")
    assert found is not None
    assert len(found.texts) == MOST_TEXTS


def test_fused_names_the_whole_prompt() -> None:
    given = prompt(SYSTEM, Message("user", "text?"), spans=[(1, 0, 4)])
    found = reuse_request_of(given, "fused", ratio=0.3)
    assert found is not None
    assert found.ratio == 0.3
    assert found.question == question_digest([("system", "Answer."), ("user", "text?")])


@pytest.mark.parametrize("params", [None, [], "rag_accel", {}, {"rag_accel": None}])
def test_answers_of_others_say_nothing(params: Any) -> None:
    assert answered_texts(params) is None


def test_only_a_refusal_is_exact() -> None:
    said = {"reused_tokens": 3, "encoded_tokens": True, "recomputed_tokens": -1}
    assert served_report("full", said) == {
        "mode": "full",
        "reused_tokens": 3,
        "encoded_tokens": 0,
        "recomputed_tokens": 0,
        "exact": False,
    }
    # What vLLM's own cache has of these texts is no more exact than what was loaded.
    assert served_report("full", {"reused_tokens": 0}, 16)["exact"] is False
    refused = {"refused": "x" * 500, "exact": True}
    assert served_report("fused", refused)["exact"] is True
    assert len(served_report("fused", refused)["refused"]) == 200
    assert served_report("fused", refused, 0)["exact"] is True


def test_a_refused_answer_with_cached_tokens_is_not_exact() -> None:
    """They are of other prompts under the request's salt."""
    assert served_report("full", {"refused": "x", "exact": True}, 16)["exact"] is False
    assert served_report("full", {"refused": "x", "exact": False})["exact"] is False
    assert served_report("full", {"refused": "x"})["exact"] is False
