"""A RAGraph as text, written and read back, one stage per line.

    ragraph(input)
    search: Retrieval@index(input) -> docs  after START  top_k=5
    answer: Generation@llm(input, docs) -> answer  after search  prompt="Use {docs}: {input}"
    answer?: Branch(*)  after answer  condition=@is_done targets=["search", "END"]
    reduce docs with @merge

``END: after answer`` says what ends the workflow; ``on_loop_limit=end`` behind the inputs, that a
loop ends where it has turned as often as it may. Callables print as ``@name`` and are bound by
``parse(text, functions=...)``; ``references(graph)`` returns what a graph's own text needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
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
from rag_accel.graph.nodes import EngineName, OnLoopLimit, Reducer, StageName, listed, suggestion
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages.kind import Stage, StageKind, kind_of, kinds_by_head


def stage_line(stage: Stage, after: Sequence[str], names: References) -> Line:
    """Return the line of a stage that follows ``after``; ``names`` takes what JSON cannot say."""
    told = (
        (key, attribute.write(getattr(stage, key), stage, names))
        for key, attribute in kind_of(stage).line.items()
    )
    return Line(
        name=stage.name,
        head=type(stage).__name__,
        engine=stage.engine,
        inputs=stage.inputs,
        reads_all=stage.reads_all,
        output=stage.output,
        after=tuple(after),
        attributes=tuple((key, value) for key, value in told if value is not None),
    )


def read_stage(line: Line, number: int, functions: Mapping[str, Any]) -> Stage:
    """Return the stage that a line describes; ``number`` is told in errors.

    Raises:
        GraphError: on an unknown kind of stage, wrong attributes or inputs, or an unbound name.
    """
    head, kinds = line.head or "", kinds_by_head()
    if head not in kinds:
        raise GraphError(
            "unknown kind of stage",
            where=f"line {number}",
            found=repr(head),
            valid=listed(kinds),
            hint=suggestion(head, kinds),
        )
    kind = kinds[head]
    given = {key: resolve(value, functions) for key, value in line.attributes}
    _check_attributes(line, number, given, kind)
    if kind.reads is not None and len(line.inputs) != len(kind.reads):
        raise _wrong_inputs(line, number, f"{len(kind.reads)} names")
    stage = kind.stage(**_fields(line, given, kind))
    if stage.inputs != line.inputs or stage.reads_all != line.reads_all:
        raise _wrong_inputs(line, number, "*" if stage.reads_all else listed(stage.inputs))
    return stage


def _fields(line: Line, given: Mapping[str, Any], kind: StageKind[Any]) -> dict[str, Any]:
    """Return the fields of the stage that a line describes."""
    known = {field.name for field in dataclass_fields(kind.stage) if field.init}
    found: dict[str, Any] = {"name": StageName(line.name)}
    found |= {key: kind.line[key].read(value) for key, value in given.items()}
    inputs = tuple(ValueName(value) for value in line.inputs)
    found |= zip(kind.reads or (), inputs, strict=False)
    if "inputs" in known:
        found |= {"inputs": inputs, "reads_all": line.reads_all}
    if "output" in known:
        found["output"] = ValueName(line.output or "")
    if "engine" in known and line.engine is not None:
        found["engine"] = EngineName(line.engine)
    return found


def _check_attributes(
    line: Line, number: int, given: Mapping[str, Any], kind: StageKind[Any]
) -> None:
    known = kind.line
    unknown = [key for key in given if key not in known]
    missing = [key for key, attribute in known.items() if attribute.required and key not in given]
    if unknown or missing:
        raise GraphError(
            "wrong attributes of a stage",
            where=f"line {number}, stage {line.name!r}",
            found=f"unknown: {listed(unknown)}; missing: {listed(missing)}",
            valid=listed(known),
        )
    for key, value in given.items():
        if not known[key].fits(value):
            raise GraphError(
                "wrong value of a stage's attribute",
                where=f"line {number}, {key} of stage {line.name!r}",
                found=shown(value),
                valid=known[key].valid,
            )


def _wrong_inputs(line: Line, number: int, valid: str) -> GraphError:
    return GraphError(
        "the inputs on a stage's line are not those it reads",
        where=f"line {number}, stage {line.name!r}",
        found="*" if line.reads_all else listed(line.inputs),
        valid=valid,
    )


def format(graph: RAGraph | FrozenRAGraph, names: References | None = None) -> str:
    """Return the text of a graph, valid or not.

    Args:
        graph: the graph.
        names: makes the names of objects that text cannot hold.
    """
    return "\n".join(_lines(graph.freeze(), References() if names is None else names))


def references(graph: RAGraph | FrozenRAGraph) -> dict[str, Any]:
    """Return the object of each ``@name`` of ``format(graph)``."""
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
    inputs, on_loop_limit = _read_header(*lines[0])
    return FrozenRAGraph(
        tuple(stages), tuple(links), inputs, tuple(reducers.items()), on_loop_limit
    )


def _lines(graph: FrozenRAGraph, names: References) -> Iterator[str]:
    ends = "" if graph.on_loop_limit == "raise" else f"  on_loop_limit={graph.on_loop_limit}"
    yield f"ragraph({format_names(graph.inputs)}){ends}"
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


def _read_header(number: int, content: str) -> tuple[tuple[ValueName, ...], OnLoopLimit]:
    cursor = Cursor(content, number)
    cursor.expect("ragraph(")
    inputs = cursor.names(end=")")
    cursor.expect(")")
    on_loop_limit: OnLoopLimit = "end" if cursor.accept("on_loop_limit=end") else "raise"
    cursor.finish()
    return tuple(ValueName(value) for value in inputs), on_loop_limit


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
