"""Turn one stage into the parts of a line and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never, cast

from rag_accel.errors import GraphError
from rag_accel.graph.lines import Line, References, resolve, shown
from rag_accel.graph.names import listed, suggestion
from rag_accel.graph.nodes import (
    DEFAULT_EMBEDDER,
    Branch,
    EngineName,
    Function,
    Generation,
    Ingestion,
    Rerank,
    Retrieval,
    Stage,
    StageName,
)
from rag_accel.graph.prompt import ValueName


def stage_line(stage: Stage, after: Sequence[str], names: References) -> Line:
    """Return the line of a stage that follows ``after``; ``names`` takes what JSON cannot say."""
    return Line(
        name=stage.name,
        head=type(stage).__name__,
        engine=stage.engine,
        inputs=stage.inputs,
        reads_all=stage.reads_all,
        output=stage.output,
        after=tuple(after),
        attributes=tuple((key, value) for key, value in _told(stage, names) if value is not None),
    )


def read_stage(line: Line, number: int, functions: Mapping[str, Any]) -> Stage:
    """Return the stage that a line describes; ``number`` is told in errors.

    Raises:
        GraphError: on an unknown kind of stage, wrong attributes or inputs, or an unbound name.
    """
    head = line.head or ""
    if head not in _READERS:
        raise GraphError(
            "unknown kind of stage",
            where=f"line {number}",
            found=repr(head),
            valid=listed(_READERS),
            hint=suggestion(head, _READERS),
        )
    reader = _READERS[head]
    given = {key: resolve(value, functions) for key, value in line.attributes}
    _check_attributes(line, number, given, reader)
    if reader.num_inputs is not None and len(line.inputs) != reader.num_inputs:
        raise _wrong_inputs(line, number, f"{reader.num_inputs} names")
    stage = reader.read(line, given)
    if stage.inputs != line.inputs or stage.reads_all != line.reads_all:
        raise _wrong_inputs(line, number, "*" if stage.reads_all else listed(stage.inputs))
    return stage


@dataclass(frozen=True, slots=True)
class _Kind:
    """Say which values an attribute may have, in words and as a test."""

    valid: str
    fits: Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class _Reader:
    read: Callable[[Line, dict[str, Any]], Stage]
    required: Mapping[str, _Kind] = field(default_factory=dict[str, _Kind])
    optional: Mapping[str, _Kind] = field(default_factory=dict[str, _Kind])
    num_inputs: int | None = None


def _told(stage: Stage, names: References) -> list[tuple[str, Any]]:
    """Return the attributes of a stage's line; those that are None are left out."""
    match stage:
        case Generation():
            return [
                ("prompt", stage.prompt),
                ("system", stage.system),
                ("stop", list(stage.stop) or None),
                ("max_tokens", stage.max_tokens),
            ]
        case Ingestion():
            return [("embedder", _told_embedder(stage))]
        case Retrieval():
            where = names.encode(dict(stage.where), f"{stage.name}.where") if stage.where else None
            embedder = ("embedder", _told_embedder(stage))
            return [("top_k", stage.top_k), ("where", where), embedder]
        case Rerank():
            return [("top_n", stage.top_n)]
        case Function():
            return [("fn", names.name(stage.fn, f"{stage.name}.fn"))]
        case Branch():
            condition = names.name(stage.condition, f"{stage.name}.condition")
            targets = None if stage.targets is None else list(stage.targets)
            return [("condition", condition), ("targets", targets)]
        case _:
            assert_never(stage)


def _told_embedder(stage: Retrieval | Ingestion) -> EngineName | None:
    return None if stage.embedder == DEFAULT_EMBEDDER else stage.embedder


def _generation(line: Line, given: dict[str, Any]) -> Stage:
    return Generation(
        name=StageName(line.name),
        prompt=given["prompt"],
        system=given.get("system"),
        stop=tuple(given.get("stop", ())),
        max_tokens=given.get("max_tokens"),
        **_output_and_engine(line),
    )


def _retrieval(line: Line, given: dict[str, Any]) -> Stage:
    return Retrieval(
        name=StageName(line.name),
        query=ValueName(line.inputs[0]),
        top_k=given["top_k"],
        where=tuple(given.get("where", {}).items()),
        embedder=EngineName(given.get("embedder", DEFAULT_EMBEDDER)),
        **_output_and_engine(line),
    )


def _ingestion(line: Line, given: dict[str, Any]) -> Stage:
    return Ingestion(
        name=StageName(line.name),
        documents=ValueName(line.inputs[0]),
        embedder=EngineName(given.get("embedder", DEFAULT_EMBEDDER)),
        **_output_and_engine(line),
    )


def _rerank(line: Line, given: dict[str, Any]) -> Stage:
    query, documents = line.inputs
    return Rerank(
        name=StageName(line.name),
        documents=ValueName(documents),
        query=ValueName(query),
        top_n=given.get("top_n"),
        **_output_and_engine(line),
    )


def _function(line: Line, given: dict[str, Any]) -> Stage:
    return Function(
        name=StageName(line.name),
        fn=given["fn"],
        inputs=tuple(ValueName(value) for value in line.inputs),
        reads_all=line.reads_all,
        output=ValueName(line.output or ""),
    )


def _branch(line: Line, given: dict[str, Any]) -> Stage:
    targets = given.get("targets")
    declared = None if targets is None else tuple(StageName(target) for target in targets)
    return Branch(StageName(line.name), given["condition"], declared)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, cast("list[object]", value)))


def _is_fields(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, cast("Mapping[object, object]", value)))


def _or_null(kind: _Kind) -> _Kind:
    return _Kind(f"{kind.valid}, or null", lambda value: value is None or kind.fits(value))


_TEXT = _Kind("a text", _is_text)
_TEXTS = _Kind("a list of texts", _is_texts)
_COUNT = _Kind("an integer from 1", _is_count)
_FIELDS = _Kind("a JSON object", _is_fields)
_CALLABLE = _Kind("a function, as @name", callable)

_READERS: dict[str, _Reader] = {
    "Generation": _Reader(
        _generation,
        {"prompt": _TEXT},
        {"system": _or_null(_TEXT), "stop": _TEXTS, "max_tokens": _or_null(_COUNT)},
    ),
    "Retrieval": _Reader(
        _retrieval, {"top_k": _COUNT}, {"where": _FIELDS, "embedder": _TEXT}, num_inputs=1
    ),
    "Rerank": _Reader(_rerank, {}, {"top_n": _or_null(_COUNT)}, num_inputs=2),
    "Ingestion": _Reader(_ingestion, {}, {"embedder": _TEXT}, num_inputs=1),
    "Function": _Reader(_function, {"fn": _CALLABLE}),
    "Branch": _Reader(_branch, {"condition": _CALLABLE}, {"targets": _or_null(_TEXTS)}),
}


def _output_and_engine(line: Line) -> dict[str, Any]:
    given: dict[str, Any] = {"output": ValueName(line.output or "")}
    return given if line.engine is None else given | {"engine": EngineName(line.engine)}


def _check_attributes(line: Line, number: int, given: Mapping[str, Any], reader: _Reader) -> None:
    known = {**reader.required, **reader.optional}
    unknown = [key for key in given if key not in known]
    missing = [key for key in reader.required if key not in given]
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
