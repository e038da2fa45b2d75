"""The earlier turns of a conversation, before the context of each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, get_args

from rag_accel.engine_api import Message
from rag_accel.engine_api.payloads import Role
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.graph.list_functions import PureFunction, TextFunction
from rag_accel.graph.nodes import START
from rag_accel.graph.prompt import placeholders
from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts

CONVERSATION = "conversation"
ABOUT_TOKENS = 256
"""Guessed length of a conversation: two turns of a question and a paragraph."""


@dataclass(frozen=True, slots=True)
class Conversation(TextFunction, PureFunction):
    """A function that writes the turns of a conversation as they stand in a prompt."""

    __name__: ClassVar[str] = CONVERSATION

    def __call__(self, history: str | Sequence[Any]) -> str:
        """Return the text; empty where there are no turns.

        Args:
            history: earlier turns, the oldest first: each a ``Message``, a pair of role and text or
                a mapping with ``role`` and ``content``; or their text as it shall stand there.

        Raises:
            DocumentError: if it is something else; names the turn.
        """
        told = history if isinstance(history, str) else "\n".join(map(_line, *_numbered(history)))
        return prompts.CONVERSATION.replace("{turns}", told) if told else ""

    @property
    def about_tokens(self) -> int:
        return ABOUT_TOKENS


def started(history: bool, *others: str) -> tuple[RAGraph, str]:
    """Return a graph that writes the conversation, if there is one, and the stage to go on from.

    Args:
        history: whether there is one.
        others: inputs besides ``input`` and ``history``.

    Raises:
        ConfigError: if ``history`` is not a truth value.
    """
    if not isinstance(cast("Any", history), bool):
        raise ConfigError(
            "the turns of a conversation belong to a request, not to the workflow",
            where="history",
            found=type(history).__name__,
            valid="True | False",
            hint="make the workflow with history=True and run it with history=[...]",
        )
    if not history:
        return RAGraph(inputs=["input", *others]), START
    graph = RAGraph(inputs=["input", *others, "history"])
    graph.add_function(CONVERSATION, Conversation(), inputs="history", output=CONVERSATION)
    return graph.add_edge(START, CONVERSATION), CONVERSATION


def with_history(prompt: str, history: bool) -> str:
    """Return a template with the conversation before it, unless it places that itself."""
    if not history or CONVERSATION in placeholders(prompt):
        return prompt
    return f"{{{CONVERSATION}}}{prompt}"


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """A writer of generations, with the conversation before each prompt if there is one.

    Args:
        llm: the engine of those that name none.
        max_tokens: most tokens of each.
    """

    graph: RAGraph
    llm: str
    max_tokens: int | None
    history: bool

    def add(
        self,
        name: str,
        prompt: str,
        output: str | None = None,
        *,
        engine: str | None = None,
        system: str | None = None,
    ) -> None:
        """Add a generation; ``output`` is by default its name."""
        self.graph.add_generation(
            name,
            prompt=with_history(prompt, self.history),
            output=output,
            system=system,
            max_tokens=self.max_tokens,
            engine=engine or self.llm,
        )


def _numbered(history: object) -> tuple[Sequence[Any], Sequence[int]]:
    if not isinstance(history, list | tuple):
        raise _bad("history", type(history).__name__, "a list of turns, or a text")
    turns = cast("Sequence[Any]", history)
    return turns, range(1, len(turns) + 1)


def _line(turn: object, number: int) -> str:
    """Return a turn on a line of its own, after what its role is called."""
    role, text = _parts(turn)
    if role not in get_args(Role) or not isinstance(text, str):
        valid = f"role and text, of {' | '.join(get_args(Role))}"
        raise _bad(f"history, turn {number}", repr(turn), valid)
    return f"{role.capitalize()}: {text}"


def _parts(turn: object) -> tuple[Any, Any]:
    match turn:
        case Message(role=role, content=content):
            return role, content
        case Mapping():
            mapping = cast("Mapping[str, Any]", turn)
            return mapping.get("role"), mapping.get("content")
        case (role, text):
            return role, text
        case _:
            return None, None


def _bad(where: str, found: str, valid: str) -> DocumentError:
    return DocumentError("this is no conversation", where=where, found=found, valid=valid)
