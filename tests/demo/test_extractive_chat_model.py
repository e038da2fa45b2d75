"""The extractive reader as a LangChain chat model."""

from __future__ import annotations

from rag_accel_demo.extractive.chat_model import ExtractiveChatModel

PROMPT = (
    "Context:\n[1] bridges\nThe bridge opened in 1932. It is 1149 metres long.\n\n"
    "[2] ferries\nThe ferry takes nine minutes.\n\nQuestion: When was the bridge opened?"
)


def test_it_answers_from_the_passages_with_a_citation() -> None:
    assert "The bridge opened in 1932. [1]" in str(ExtractiveChatModel().invoke(PROMPT).content)


def test_what_it_streams_is_what_it_answers() -> None:
    model = ExtractiveChatModel()
    streamed = "".join(str(chunk.content) for chunk in model.stream(PROMPT))
    assert streamed == model.invoke(PROMPT).content


def test_a_stop_word_ends_the_answer_before_it() -> None:
    assert "1932" not in str(ExtractiveChatModel().invoke(PROMPT, stop=["1932"]).content)
