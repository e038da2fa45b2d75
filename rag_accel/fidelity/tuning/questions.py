"""Questions about relation paths: generated from a seed, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.errors import ConfigError
from rag_accel.fidelity.prompt_file import load_lines
from rag_accel.kv.dependency.lines import parse_path
from rag_accel.kv.dependency.paths import Segments

_VALID = '{"paths": ["a -> r -> b", ...], "question": "...", "answer": "..."}'


@dataclass(frozen=True, slots=True)
class GraphQuestions:
    """Relation paths, and questions about them that do not see each other.

    Args:
        paths: the segments of each.
        questions: each with its answer.
    """

    paths: tuple[Segments, ...]
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The sizes of a generated graph: subgraphs of two hops, each from an entity of its own.

    Args:
        subgraphs: how many.
        first_hops: edges of an entity; each leads to another one.
        second_hops: edges of each of those.
        questions: most of a graph; each about another path.

    Raises:
        ConfigError: one of them is less than 1.
    """

    subgraphs: int = 3
    first_hops: int = 3
    second_hops: int = 2
    questions: int = 4

    def __post_init__(self) -> None:
        for name in ("subgraphs", "first_hops", "second_hops", "questions"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    "a generated graph is too small",
                    where=name,
                    found=getattr(self, name),
                    valid="1 or more",
                )


@dataclass(frozen=True, slots=True)
class GraphNames:
    """The names that generated graphs are made of.

    Args:
        entities: at least as many as a graph has.
        first_relations: of first hops.
        second_relations: of second hops.
        question: returns the text that asks where an entity's two relations lead to.
    """

    entities: tuple[str, ...]
    first_relations: tuple[str, ...]
    second_relations: tuple[str, ...]
    question: Callable[[str, str, str], str]


def generate_questions(
    names: GraphNames, shape: GraphShape, rng: np.random.Generator
) -> GraphQuestions:
    """Return the paths of a graph and questions about some of them.

    Raises:
        ConfigError: there are fewer names than the shape needs.
    """
    first, second = shape.first_hops, shape.second_hops
    needed = shape.subgraphs * (1 + first)
    for where, given, least in (
        ("entities", names.entities, needed),
        ("first_relations", names.first_relations, first),
        ("second_relations", names.second_relations, second),
    ):
        if len(given) < least:
            raise ConfigError(
                "a generated graph needs more names",
                where=where,
                found=len(given),
                valid=f"at least {least}",
            )
    chosen = rng.choice(len(names.entities), needed, replace=False).tolist()
    heads, middles = chosen[: shape.subgraphs], iter(chosen[shape.subgraphs :])
    paths: list[Segments] = []
    questions: list[tuple[str, str]] = []
    for head in (names.entities[at] for at in heads):
        for hop in rng.choice(len(names.first_relations), first, replace=False).tolist():
            relation, middle = names.first_relations[hop], names.entities[next(middles)]
            for next_hop in rng.choice(len(names.second_relations), second, replace=False).tolist():
                onward = names.second_relations[next_hop]
                leaf = names.entities[int(rng.integers(len(names.entities)))]
                paths.append(
                    (head, f" -> {relation} ->", f" {middle}", f" -> {onward} ->", f" {leaf}")
                )
                questions.append((names.question(head, relation, onward), leaf))
    asked = rng.choice(len(questions), min(shape.questions, len(questions)), replace=False)
    return GraphQuestions(tuple(paths), tuple(questions[at] for at in asked.tolist()))


def load_graph_questions(path: str | Path) -> list[GraphQuestions]:
    """Return the prompts of a UTF-8 file with one JSON object a line; blank lines are ignored.

    An object has ``paths``, a list of lines such as ``a -> r -> b``, a ``question`` and its
    ``answer``; other members are ignored.

    Raises:
        DocumentError: the file is missing, too large or empty, or a line is no prompt; names it.
    """
    return load_lines(path, _prompt, _VALID)


def _prompt(members: dict[str, Any]) -> GraphQuestions:
    lines, question, answer = (members.get(name) for name in ("paths", "question", "answer"))
    if not isinstance(lines, list) or not lines:
        raise ValueError("no list of paths")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("no question")
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError("no answer")
    paths = [parse_path(line) if isinstance(line, str) else None for line in lines]
    kept = tuple(path for path in paths if path is not None)
    if len(kept) < len(paths):
        raise ValueError(f"a path {lines[paths.index(None)]!r}")
    return GraphQuestions(kept, ((question, answer),))
