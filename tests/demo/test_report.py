"""What the demo's report says of its figures."""

from __future__ import annotations

from rag_accel_demo.report import FEW_CHUNKS, FEW_QUESTIONS, size_note, time_spent

CELLS = {
    "steps": 1,
    "queue_wait_s": {"sum": 0.0, "count": 1},
    "batch_size": {"sum": 4.0, "count": 1},
    "step_s": {"sum": 0.5},
}


def test_a_long_name_loses_whole_parts_and_no_letters() -> None:
    long = "rag_accel_demo.extractive.chat_model.of_a_long_package.ExtractiveChatModel"
    shown = time_spent({"engines": {long: CELLS}}).splitlines()[1]
    name = shown.split()[0]
    assert long.endswith(f".{name}")
    assert name.endswith("of_a_long_package.ExtractiveChatModel")


def test_a_short_name_is_shown_whole() -> None:
    shown = time_spent({"engines": {"embedding#1": CELLS}}).splitlines()[1]
    assert shown.startswith("embedding#1 ")


def test_figures_of_few_documents_or_questions_are_said_to_show_little() -> None:
    assert "3 chunks" in size_note(3, FEW_QUESTIONS)
    assert "2 distinct questions" in size_note(FEW_CHUNKS, 2)
    assert size_note(FEW_CHUNKS, FEW_QUESTIONS) == ""
