"""Write a RAGraph as text and read it back, one stage per line.

    ragraph(input)
    search: Retrieval@index(input) -> docs  after START  top_k=5
    answer: Generation@llm(input, docs) -> answer  after search  prompt="Use {docs}: {input}"
    answer?: Branch(*)  after answer  condition=@is_done targets=["search", "END"]
    reduce docs with @merge

``END: after answer`` says what ends the workflow. Callables print as ``@name`` and are bound by
``parse(text, functions=...)``; ``references(graph)`` returns what a graph's own text needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph, Link
from rag_accel.graph.lines import (
    Cursor,
    Line,
    References,
    format_line,
    format_names,
    format_value,
    numbered_lines,
    parse_line,
    quoted,
    resolve,
    shown,
)
from rag_accel.graph.nodes import Reducer, Stage, StageName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stage_lines import read_stage, stage_line


def format(graph: RAGraph | FrozenRAGraph) -> str:
    """Return the text of a graph, valid or not."""
    return "\n".join(_lines(graph.freeze(), References()))


def references(graph: RAGraph | FrozenRAGraph) -> dict[str, Any]:
    """Return what each ``@name`` of ``format(graph)`` stands for."""
    names = References()
    for _ in _lines(graph.freeze(), names):
        pass
    return names.bound


def parse(text: str, functions: Mapping[str, Any] | None = None) -> FrozenRAGraph:
    """Return the graph that ``format`` wrote as ``text``.

    Args:
        functions: what each ``@name`` stands for.

    Raises:
        GraphError: if the text does not follow the grammar, an attribute is unknown, missing or
            of the wrong type, or an ``@name`` is not among ``functions``.
    """
    bound = functions or {}
    lines = numbered_lines(text)
    if not lines:
        raise GraphError("the graph's text is empty", valid="a first line such as ragraph(input)")
    stages: list[Stage] = []
    links: list[Link] = []
    reducers: dict[ValueName, Reducer] = {}
    for number, content in lines[1:]:
        if content.startswith("reduce "):
            output, reference = _read_reducer(content, number)
            reducers[output] = _reducer(output, resolve(reference, bound), number)
            continue
        line = parse_line(content, number)
        if line.head is not None:
            stages.append(read_stage(line, number, bound))
        links.extend((StageName(source), StageName(line.name)) for source in line.after)
    inputs = _read_header(*lines[0])
    return FrozenRAGraph(tuple(stages), tuple(links), inputs, tuple(reducers.items()))


def _lines(graph: FrozenRAGraph, names: References) -> Iterator[str]:
    yield f"ragraph({format_names(graph.inputs)})"
    told: set[str] = set()
    for stage in graph.stages:
        after = () if stage.name in told else graph.predecessors[stage.name]
        told.add(stage.name)
        yield format_line(stage_line(stage, after, names))
    for name, sources in graph.predecessors.items():
        if sources and name not in told:
            yield format_line(Line(name, after=sources))
    for output, fn in graph.reducers:
        yield f"reduce {quoted(output)} with {format_value(names.name(fn, f'{output}.reducer'))}"


def _read_header(number: int, content: str) -> tuple[ValueName, ...]:
    cursor = Cursor(content, number)
    cursor.expect("ragraph(")
    inputs = cursor.names(end=")")
    cursor.expect(")")
    cursor.finish()
    return tuple(ValueName(value) for value in inputs)


def _read_reducer(content: str, number: int) -> tuple[ValueName, Any]:
    cursor = Cursor(content, number)
    cursor.expect("reduce ")
    output = ValueName(cursor.name())
    cursor.expect("with ")
    reference = cursor.value()
    cursor.finish()
    return output, reference


def _reducer(output: ValueName, fn: object, number: int) -> Reducer:
    if not callable(fn):
        raise GraphError(
            "a reducer is no function",
            where=f"line {number}, reducer of {output!r}",
            found=shown(fn),
            valid="a function, as @name",
        )
    return fn
