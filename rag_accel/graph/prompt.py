"""Prompt templates, split into literal text and the values they name. No rendering here.

A template follows ``str.format``: ``{docs}`` names a value, ``{{`` and ``}}`` stand for braces.
Attribute access, indexing, conversions and format specs are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter
from typing import NewType

from rag_accel.errors import GraphError

ValueName = NewType("ValueName", str)


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Literal text and the value that follows it, if one does."""

    literal: str
    value: ValueName | None


def split_prompt(template: str) -> tuple[PromptPiece, ...]:
    """Return the pieces of a template in order.

    Raises:
        GraphError: on unbalanced braces, a placeholder without a name, a conversion or a spec.
    """
    try:
        parsed = list(Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise _malformed(template, str(error)) from None
    return tuple(_piece(template, *part) for part in parsed)


def join_prompt(pieces: Iterable[PromptPiece]) -> str:
    """Return the template that ``split_prompt`` takes apart into these pieces."""
    text = ""
    for piece in pieces:
        text += piece.literal.replace("{", "{{").replace("}", "}}")
        text += "" if piece.value is None else f"{{{piece.value}}}"
    return text


def placeholders(template: str) -> tuple[ValueName, ...]:
    """Return the values a template names, each once, in order of appearance."""
    values = (piece.value for piece in split_prompt(template))
    return tuple(dict.fromkeys(value for value in values if value is not None))


def _piece(
    template: str, literal: str, name: str | None, spec: str | None, conversion: str | None
) -> PromptPiece:
    if name is None:
        return PromptPiece(literal, None)
    if not name or spec or conversion:
        shown = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        raise _malformed(template, f"placeholder {{{shown}}}")
    return PromptPiece(literal, ValueName(name))


def _malformed(template: str, found: str) -> GraphError:
    return GraphError(
        "the prompt is not a template",
        where=repr(template),
        found=found,
        valid="text with placeholders such as {input}",
        hint="write {{ and }} for braces that are part of the text",
    )
