"""Tools in prompts as ``apply_chat_template`` writes them, and calls read from answers."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import real_model
from fake_runner import tokenizer
from tool_chat import CALL, MALFORMED, QWEN, TEMPLATE

from rag_accel.engine_api import ChunkSpan, GenerationOutput, Message, ToolCall
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.tools import AnswerPieces, read_calls, takes_tools

TOOL = {
    "type": "function",
    "function": {
        "name": "height",
        "description": "Returns the height of a mountain — in metres.",
        "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
    },
}
PASSAGE = "Mount Fuji is 3776 metres high, as the survey of the guide says."
MESSAGES = (
    Message("system", "Be brief."),
    Message("user", "How high is Fuji?"),
    Message("assistant", "", (ToolCall("id1", "height", '{"of": "富士"}'),)),
    Message("tool", PASSAGE, tool_call_id="id1"),
    Message("user", "Thanks. In feet?"),
)
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How high is Fuji?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "height", "arguments": {"of": "富士"}}}
        ],
    },
    {"role": "tool", "name": "height", "content": PASSAGE},
    {"role": "user", "content": "Thanks. In feet?"},
]


@pytest.mark.parametrize("splits", [False, True])
def test_a_prompt_with_tools_is_that_of_apply_chat_template(splits: bool) -> None:
    real = real_model.tokenizer()
    expected = real.apply_chat_template(
        TURNS, tools=[TOOL], chat_template=QWEN, add_generation_prompt=True
    )
    prompting = Prompting(real, template=QWEN, split_special_tokens=splits)
    assert list(prompting.whole(MESSAGES, [TOOL])) == expected["input_ids"]


def test_names_of_special_tokens_in_calls_can_be_read_as_text() -> None:
    call = ToolCall("id1", "height", '{"of": "</s>"}')
    messages = (*MESSAGES[:2], Message("assistant", "", (call,)), *MESSAGES[3:])
    counts = [
        Prompting(tokenizer(), template=TEMPLATE, split_special_tokens=splits)
        .whole(messages, [TOOL])
        .count(1)
        for splits in (False, True)
    ]
    assert counts == [6, 5]


def test_a_passage_in_a_tool_message_is_a_segment_of_the_prompt() -> None:
    prompting = Prompting(tokenizer(), template=TEMPLATE)
    spans = [ChunkSpan(3, 0, len(PASSAGE))]
    found = prompting.segmented(MESSAGES, spans, 4, [TOOL])
    assert found is not None
    whole = prompting.whole(MESSAGES, [TOOL])
    assert tokenizer().decode(found.ids) == tokenizer().decode(whole)
    assert [tokenizer().decode(chunk.ids) for chunk in found.chunks] == [PASSAGE]


def test_a_template_takes_tools_where_they_change_its_text() -> None:
    assert takes_tools(tokenizer(), TEMPLATE)
    assert not takes_tools(tokenizer(), None)
    assert not takes_tools(tokenizer(), "{{ raise_exception('no') }}")


HERMES = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
ANSWERS = {
    "tags": (HERMES * 2 + "behind", "", ["f", "f"]),
    "text before": ("See:\n" + HERMES, "See:\n", ["f"]),
    "no end tag": (HERMES.removesuffix("</tool_call>"), "", ["f"]),
    "bare objects": ('{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}', "", "fg"),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", ["f"]),
    "an object": ('{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    "a text": ("{braces} first", "{braces} first", []),
    "a tag alone": ("<tool_call>", "<tool_call>", []),
}


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS)
def test_calls_are_read_from_answers(case: tuple[str, str, list[str]]) -> None:
    text, before, names = case
    answer = read_calls(GenerationOutput(text))
    assert answer.text == before
    assert [call.name for call in answer.tool_calls] == [*names]


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_call_is_kept_as_text(text: str) -> None:
    answer = read_calls(GenerationOutput(text))
    assert (answer.text, answer.tool_calls) == (text, ())
    assert len(answer.malformed_calls) == 1


@pytest.mark.parametrize(
    "text",
    [CALL, "  {a} set", "a < b", *MALFORMED.values(), *(case[0] for case in ANSWERS.values())],
)
def test_a_stream_shows_what_a_whole_answer_says(text: str) -> None:
    output, shown = GenerationOutput(text), AnswerPieces()
    found = [piece for given in (*text, output) for piece in shown.of(given)]
    (whole,) = [piece for piece in found if not isinstance(piece, str)]
    assert whole is found.pop()
    assert "".join(map(str, found)) == whole.text == read_calls(output).text
    assert all(found)
