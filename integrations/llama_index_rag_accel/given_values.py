"""The texts and conversations among what a method of a LlamaIndex program is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.schema import QueryBundle

from rag_accel.engine_api import Message, Role
from rag_accel.leaves.recorded_prompts import MOST_VALUES, Values

_ROLES: Mapping[MessageRole, Role] = {
    MessageRole.SYSTEM: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
}


def values_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
    """Return questions, and messages of text, by the place or the name of the argument.

    No code of the program's runs: what is of a class of its own is left out.
    """
    named = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    found: dict[str, str | tuple[Message, ...]] = {}
    for name, value in islice(named.items(), MOST_VALUES):
        text = value.query_str if type(value) is QueryBundle else value
        known = text if type(text) is str else _turns(text)
        if known is not None:
            found[name] = known
    return found


def _turns(value: Any) -> tuple[Message, ...] | None:
    """Return messages as engines take them; None where one of them is anything else."""
    if type(value) is not list:
        return None
    told: list[Any] = value
    turns: list[Message] = []
    for message in told:
        if type(message) is not ChatMessage or message.role not in _ROLES:
            return None
        if any(type(block) is not TextBlock for block in message.blocks):
            return None
        turns.append(Message(_ROLES[message.role], message.content or ""))
    return tuple(turns)
