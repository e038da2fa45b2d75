"""The texts and conversations among what a LangChain program is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    SystemMessageChunk,
)

from rag_accel.engine_api import Message, Role
from rag_accel.leaves.recorded_prompts import MOST_VALUES, Values

_ROLES: Mapping[type[BaseMessage], Role] = {
    SystemMessage: "system",
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessageChunk: "system",
    HumanMessageChunk: "user",
    AIMessageChunk: "assistant",
}


def values_of(given: Any) -> Values:
    """Return texts, and messages of text, by their key; that of what stands alone is empty.

    No code of the program's runs: what is of a class of its own is left out.
    """
    named = given if type(given) is dict else {"": given}
    found: dict[str, str | tuple[Message, ...]] = {}
    for name, value in islice(named.items(), MOST_VALUES):
        known = value if type(value) is str else _turns(value)
        if type(name) is str and known is not None:
            found[name] = known
    return found


def _turns(value: Any) -> tuple[Message, ...] | None:
    """Return messages as engines take them; None where one of them is anything else."""
    told: Sequence[Any] = value if type(value) in (list, tuple) else (value,)
    turns: list[Message] = []
    for message in told:
        role = _ROLES.get(type(message))
        if role is None or type(message.content) is not str:
            return None
        turns.append(Message(role, message.content))
    return tuple(turns)
