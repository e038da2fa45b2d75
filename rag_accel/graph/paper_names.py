"""The request's input under the name that HedraRAG's Listing 1 has for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rag_accel.graph.nodes import DEFAULT_QUERY
from rag_accel.graph.prompt import PromptPiece, ValueName, join_prompt, placeholders, split_prompt
from rag_accel.graph.stages import Generation, GraphRetrieval, Rerank, Retrieval, Stage

QUERY: Final = ValueName("query")


def by_their_inputs(stages: Sequence[Stage], inputs: Sequence[ValueName]) -> tuple[Stage, ...]:
    """Return the stages with the input ``input`` for the name ``query``.

    Only where a request brings along that input alone and no stage writes a value of that name.
    """
    if tuple(inputs) != (DEFAULT_QUERY,) or any(stage.output == QUERY for stage in stages):
        return tuple(stages)
    return tuple(_by_its_input(stage) if QUERY in stage.inputs else stage for stage in stages)


def _by_its_input(stage: Stage) -> Stage:
    if isinstance(stage, Generation):
        system = None if stage.system is None else _renamed(stage.system)
        return replace(stage, prompt=_renamed(stage.prompt), system=system)
    if isinstance(stage, Retrieval | GraphRetrieval | Rerank) and stage.query == QUERY:
        return replace(stage, query=DEFAULT_QUERY)
    return stage


def _renamed(template: str) -> str:
    if QUERY not in placeholders(template):
        return template
    return join_prompt(
        PromptPiece(piece.literal, DEFAULT_QUERY if piece.value == QUERY else piece.value)
        for piece in split_prompt(template)
    )
