"""Options of stages that each request sets, for one graph that serves requests of all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar, cast

from rag_accel.errors import GraphError

StageT = TypeVar("StageT")

INPUT_KEY: Final = "$input"
"""The key that stands for an input in the text of a graph."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph as the value of a stage's option, such as ``top_k=Input("k")``.

    Each request then says it, and is checked before anything of it runs. One graph, compiled once,
    serves them all::

        graph = RAGraph(inputs=["input", "k", "tenant"])
        graph.add_retrieval("docs", top_k=Input("k"), where={"tenant": Input("tenant")})

    Args:
        name: the input.

    Raises:
        GraphError: if the name is no text.
    """

    name: str

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise GraphError(
                "an input is named by a text", found=repr(self.name), valid='such as Input("k")'
            )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def is_input(value: object) -> bool:
    """Tell whether a request sets this value of an option."""
    return isinstance(value, Input)


def probable(value: int | Input, guess: int) -> int:
    """Return a number, or the guess where each request says it."""
    return guess if isinstance(value, Input) else value


def named_inputs(stage: Any) -> Iterator[tuple[str, str]]:
    """Yield each option of a stage that names an input, with that input."""
    for field in fields(stage):
        for found in _inputs_in(getattr(stage, field.name)):
            yield field.name, found.name


def bound(stage: StageT, values: Mapping[str, Any]) -> StageT:
    """Return a stage with the options that a request sets.

    Raises:
        GraphError: if a value is none that the option may have.
    """
    told = {option: _bound_option(stage, option, values) for option, _ in named_inputs(stage)}
    try:
        return cast("StageT", replace(cast("Any", stage), **told))
    except GraphError as error:
        names = ", ".join(repr(name) for _, name in named_inputs(stage))
        error.add_note(f"the request sets this option, by its input {names}")
        raise


def bound_attributes(
    attributes: tuple[tuple[str, Any], ...], values: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """Return the attributes of a primitive with what the request says in place of inputs."""
    told = ((key, _bound_value(value, values)) for key, value in attributes)
    return tuple((key, value) for key, value in told if value is not None)


def holds_inputs(attributes: tuple[tuple[str, Any], ...]) -> bool:
    """Tell whether a request sets some of a primitive's attributes."""
    return any(True for _, value in attributes for _ in _inputs_in(value))


def _bound_option(stage: Any, option: str, values: Mapping[str, Any]) -> Any:
    given = getattr(stage, option)
    value = _bound_value(given, values)
    default = next(field.default for field in fields(stage) if field.name == option)
    return () if value is None and default == () else value


def _bound_value(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of an option with what the request says, as stages hold it."""
    if isinstance(value, tuple):
        return tuple(_bound_value(item, values) for item in cast("tuple[Any, ...]", value))
    if not isinstance(value, Input):
        return value
    said = values[value.name]
    if isinstance(said, Mapping):
        return tuple(cast("Mapping[Any, Any]", said).items())
    return tuple(cast("list[Any]", said)) if isinstance(said, list) else said


def _inputs_in(value: object) -> Iterator[Input]:
    if isinstance(value, Input):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            yield from _inputs_in(item)
