"""A date or a time in the head of prompts is named: it makes every day's texts new."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from fake_runner import TEMPLATE, tokenizer

from rag_accel.fidelity.heads import dated_heads
from rag_accel.fidelity.prompts import TextPrompt

TODAY = "{% if strftime_now is defined %}Today: {{ strftime_now('%d %b %Y') }}\n{% endif %}"
TEXT = "Mount Fuji was climbed on 2024-07-01 by a guide."


def prompt(system: str) -> TextPrompt:
    return TextPrompt((TEXT,), "When was that, before 2025-01-01?", system)


def test_a_template_that_writes_the_day_is_named_with_its_line() -> None:
    (said,) = dated_heads(tokenizer(), [prompt("Be brief.")], TODAY + TEMPLATE)
    assert "the chat template writes the day" in said
    assert '"Today: 03 Feb 2025"' in said


def test_a_template_that_writes_the_day_behind_the_texts_does_no_harm() -> None:
    assert dated_heads(tokenizer(), [prompt("Be brief.")], TEMPLATE + TODAY) == ()


@pytest.mark.parametrize(
    "date",
    ["2026-11-25", "25.11.2026", "25 Nov 2026", "November 25, 2026", "Nov 25th 2026", "9:30"],
)
def test_a_date_in_the_systems_turn_is_named(date: str) -> None:
    (said,) = dated_heads(tokenizer(), [prompt(f"It is {date} now. Be brief.")])
    assert f'"{date}"' in said


@pytest.mark.parametrize("system", ["", "Answer in 10 words.", "Keep to section 3.1 of 2024."])
def test_dates_elsewhere_and_other_numbers_are_not(system: str) -> None:
    assert dated_heads(tokenizer(), [prompt(system)]) == ()


def test_each_head_is_named_once() -> None:
    prompts = [prompt("On 2026-11-25."), prompt("On 2026-11-25."), prompt("On 2026-11-26.")]
    assert len(dated_heads(tokenizer(), prompts)) == 2
