"""Dates and times in the heads of prompts: with each new one all texts are computed again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rag_accel.fidelity.prompts import TextPrompt

#: They differ in year, month, day, weekday, hour, minute and second, and in the day's half.
_ONE, _OTHER = datetime(2025, 2, 3, 4, 5, 6), datetime(2031, 11, 28, 17, 49, 58)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DATE = re.compile(
    r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b"
    r"|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{4}\b"
    rf"|\b\d{{1,2}}\.? {_MONTH} \d{{4}}\b"
    rf"|\b{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}\b"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?\b"
)
_SHOWN = 80
#: Codes in the format of a date.
_CODES = "aAwdbBmyYHIpMSjUWcxX"


def dated_heads(
    tokenizer: Any, prompts: Sequence[TextPrompt], template: str | None = None
) -> tuple[str, ...]:
    """Return a sentence about each head in which a date or a time stands.

    Texts are encoded behind the head, so their kept states are useless once it has changed.

    Args:
        tokenizer: of transformers.
        prompts: whose heads are checked, those of equal system's turns once.
        template: a chat template in place of the tokenizer's.
    """
    firsts = {prompt.system: prompt for prompt in prompts}
    found = (_dated(tokenizer, first, template) for first in firsts.values())
    return tuple(dict.fromkeys(said for each in found for said in each))


def _dated(tokenizer: Any, prompt: TextPrompt, template: str | None) -> Iterator[str]:
    head, other = (_head(tokenizer, prompt, template, day) for day in (_ONE, _OTHER))
    if head != other:
        yield f'the chat template writes the day or the time into the head: "{_apart(head, other)}"'
    elif (written := _DATE.search(head)) is not None:
        yield f'a date or a time stands in the head: "{written.group()}"'


def _head(tokenizer: Any, prompt: TextPrompt, template: str | None, day: datetime) -> str:
    """Return a prompt up to the user's turn, as a template renders it on a day."""
    turns = [{"role": message.role, "content": message.content} for message in prompt.messages]
    text: str = tokenizer.apply_chat_template(
        turns,
        chat_template=_today(day) + tokenizer.get_chat_template(template),
        add_generation_prompt=True,
        tokenize=False,
    )
    return text.partition(prompt.content.strip())[0]


def _today(day: datetime) -> str:
    """Return a definition of the function by which templates ask for the day and the time."""
    filled = "".join(f"|replace('%{code}', '{day.strftime(f'%{code}')}')" for code in _CODES)
    return f"{{% macro strftime_now(format) %}}{{{{ format{filled} }}}}{{% endmacro %}}"


def _apart(head: str, other: str) -> str:
    """Return the first line of a head that the other one does not have."""
    pairs = zip(head.splitlines(), other.splitlines(), strict=False)
    return next((line for line, changed in pairs if line != changed), head)[:_SHOWN].strip()
