"""The messages by which a server shows which tokens texts stand behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag_accel.engine_api import Message
from rag_accel.errors import ConfigError

#: Where texts stand in the messages of a prompt.
PLACE = "{context}"
_TEXT = "A text"


def head_probes(prompt: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return two lists of messages whose tokens are the same as far as the head goes.

    It ends before the first message that is not the system's, or that holds a text. In one list
    this message begins as it does in prompts, in the other one by another character.

    Raises:
        ConfigError: the prompt does not say where its texts stand.
    """
    count = sum(turn.content.count(PLACE) for turn in prompt)
    if count != 1:
        raise ConfigError(
            "the prompt does not say where its texts stand",
            where="prompt",
            found=f"{count} times {PLACE}",
            valid=f"messages with {PLACE} once",
        )
    at = next(
        at for at, turn in enumerate(prompt) if turn.role != "system" or PLACE in turn.content
    )
    begins = prompt[at].content.replace(PLACE, _TEXT)
    other = "9" if begins[:1] != "9" else "Z"
    return _messages(prompt, at, begins), _messages(prompt, at, other)


def _messages(prompt: Sequence[Message], at: int, content: str) -> list[dict[str, Any]]:
    turns = [{"role": turn.role, "content": turn.content.replace(PLACE, _TEXT)} for turn in prompt]
    turns[at]["content"] = content
    return turns if turns[-1]["role"] == "user" else [*turns, {"role": "user", "content": "?"}]
