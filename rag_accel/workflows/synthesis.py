"""The stages that make one answer of several passages (Teola sections 4.2 and 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, assert_never, get_args

from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import END
from rag_accel.graph.prompt import ValueName, join_prompt, split_prompt
from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts, steps
from rag_accel.workflows.history import AnswerWriter

SynthesisMode = Literal["stuff", "tree", "refine"]


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A method of making an answer of retrieved passages.

    ``stuff`` puts all of them into one prompt. ``tree`` answers from each passage on its own, all
    at once, and combines these answers: a tree of two levels, whatever the number of passages.
    ``refine`` answers from the first passage and improves the answer with one after the other; the
    passages that were found are counted at run time, so it is a loop, and they may not exceed the
    option ``max_loops``.

    Args:
        mode: one of these.
        stuff_prompt: of ``docs`` and ``input``; also for a tree of one passage or of none.
        passage_prompt: of ``passage`` and ``input``; each leaf of a tree, and the begin of refine.
        combine_prompt: of ``partials`` and ``input``.
        refine_prompt: of ``passage``, ``input`` and ``answer``.

    Raises:
        ConfigError: on another mode.
    """

    mode: SynthesisMode = "stuff"
    stuff_prompt: str = prompts.ANSWER
    passage_prompt: str = prompts.ANSWER_PASSAGE
    combine_prompt: str = prompts.COMBINE
    refine_prompt: str = prompts.REFINE

    def __post_init__(self) -> None:
        if self.mode not in get_args(SynthesisMode):
            valid = " | ".join(get_args(SynthesisMode))
            raise ConfigError("no such synthesis", where="mode", found=self.mode, valid=valid)


def add_synthesis(
    writer: AnswerWriter, after: str, how: SynthesisMode | Synthesis, *, width: int
) -> RAGraph:
    """Add the stages from the value ``docs``, complete after stage ``after``, to END.

    Args:
        width: most documents that ``docs`` may hold.
    """
    chosen = how if isinstance(how, Synthesis) else Synthesis(how)
    graph = writer.graph
    match chosen.mode:
        case "stuff":
            writer.add("answer", chosen.stuff_prompt)
            graph.add_edge(after, "answer").add_edge("answer", END)
        case "tree":
            _add_tree(writer, after, chosen, width)
        case "refine":
            _add_refine(writer, after, chosen)
        case _:
            assert_never(chosen.mode)
    return graph


@dataclass(frozen=True, slots=True)
class _Leaves:
    """A condition: as many leaves as there are documents; one document or none needs no tree."""

    names: tuple[str, ...]
    single: str
    __name__: ClassVar[str] = "leaves"

    def __call__(self, values: Mapping[str, Any]) -> list[str]:
        count = len(values["docs"])
        return list(self.names[:count]) if count > 1 else [self.single]


@dataclass(frozen=True, slots=True)
class _MorePassages:
    """A condition: go on while a passage is left."""

    again: str
    __name__: ClassVar[str] = "more_passages"

    def __call__(self, values: Mapping[str, Any]) -> str:
        return self.again if values["left"] else END


def _add_tree(writer: AnswerWriter, after: str, how: Synthesis, width: int) -> None:
    graph = writer.graph
    picks = [f"passage{place}" for place in range(1, width + 1)]
    leaves = [f"partial{place}" for place in range(1, width + 1)]
    for place, (pick, leaf) in enumerate(zip(picks, leaves, strict=True)):
        graph.add_function(pick, steps.NthAlone(place), inputs="docs")
        writer.add(leaf, _renamed(how.passage_prompt, "passage", pick), "partials")
        graph.add_edge(pick, leaf)
    graph.add_reducer("partials", steps.paragraphs)
    writer.add("combine", how.combine_prompt, "answer")
    writer.add("single", how.stuff_prompt, "answer")
    choose = _Leaves(tuple(picks), "single")
    graph.add_edge(after, choose, targets=[*picks, "single"])
    graph.add_edge(leaves, "combine").add_edge("combine", END).add_edge("single", END)


def _add_refine(writer: AnswerWriter, after: str, how: Synthesis) -> None:
    graph = writer.graph
    more = _MorePassages("next")
    graph.add_function("first", steps.first_of, inputs="docs", output="passage")
    graph.add_function("rest", steps.rest_of, inputs="docs", output="left")
    writer.add("draft", how.passage_prompt, "answer")
    graph.add_edge(after, "first").add_edge("first", "rest").add_edge("rest", "draft")
    graph.add_edge("draft", more, targets=["next", END])
    graph.add_function("next", steps.first_of, inputs="left", output="passage")
    graph.add_function("others", steps.rest_of, inputs="left", output="left")
    writer.add("refine", how.refine_prompt, "answer")
    graph.add_edge("next", "others").add_edge("others", "refine")
    graph.add_edge("refine", more, targets=["next", END])


def _renamed(prompt: str, old: str, new: str) -> str:
    """Return a template that names another value."""
    pieces = split_prompt(prompt)
    named = [
        replace(piece, value=ValueName(new)) if piece.value == old else piece for piece in pieces
    ]
    return join_prompt(named)
