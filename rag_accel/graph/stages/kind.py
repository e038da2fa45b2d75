"""The properties of a kind of stage, and the checks the built-in stages share.

One row describes a kind: what its line of text says, which primitives it becomes and what goes
with them. Each built-in kind stands with its row in a file of its own in this folder; a kind of
another package is registered with ``register_stage`` and added with ``RAGraph.add_stage``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph.lines import References
from rag_accel.graph.nodes import RESERVED, TURN_MARK, EngineName, StageName
from rag_accel.graph.option_inputs import is_input
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.retry import check_recovery, write_fallback, write_retry

Engines: TypeAlias = Mapping[str, EngineProfile | BorrowedEngine]
#: How many documents each value probably holds.
Counts: TypeAlias = Mapping[ValueName, int]


class Stage(Protocol):
    """One step of a workflow: an immutable value with a name, what it reads and writes."""

    @property
    def name(self) -> StageName:
        """Return its name, unique in its graph."""
        ...

    @property
    def inputs(self) -> tuple[ValueName, ...]:
        """Return the values it reads, in order."""
        ...

    @property
    def reads_all(self) -> bool:
        """Tell whether it is given the mapping of all values."""
        ...

    @property
    def output(self) -> ValueName | None:
        """Return the value it writes, if any."""
        ...

    @property
    def engine(self) -> EngineName | None:
        """Return the engine that serves it, if it is not the user's code."""
        ...


S = TypeVar("S", bound=Stage)


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive that a stage becomes.

    Args:
        kind: what the engine has to execute.
        engine: its name; without one it is the user's code.
        reads_stage: whether it reads the stage's own inputs too, after what the step before wrote.
        items: how many items it probably has.
        label: tells it from others of its kind in the stage; empty where it is the only one.
        writes: names what it hands to later steps; empty for what its kind always hands on.
        reads: which of these it reads, by name. Where this or ``given`` is set, it reads these and
            no others; else what the step before wrote.
        given: which of the stage's inputs it reads, after ``reads``.
        attributes: what is fixed for it alone.
    """

    kind: PrimitiveKind
    engine: EngineName | None = None
    reads_stage: bool = False
    items: int = 1
    label: str = ""
    writes: str = ""
    reads: tuple[str, ...] = ()
    given: tuple[ValueName, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()


WriteAttribute: TypeAlias = Callable[[Any, Stage, References], Any]
"""Return the value of a stage's attribute for its line of text, ``None`` to leave it out."""


@dataclass(frozen=True, slots=True)
class StageKind(Generic[S]):
    """A kind of stage.

    Args:
        stage: its class, whose name heads its lines of text.
        steps: returns the primitives a stage becomes on these engines, in order.
        engines: the fields that name engines, in the order in which they are used.
        line: writes the attributes of its line, by field.
        of_first: fields told to its first primitive.
        of_last: fields told to its last primitive.
        written: returns how many documents its output probably holds, 0 for something else.
    """

    stage: type[S]
    steps: Callable[[S, Engines, Counts], Sequence[Step]]
    engines: tuple[str, ...] = ("engine",)
    line: Mapping[str, WriteAttribute] = field(default_factory=dict[str, WriteAttribute])
    of_first: tuple[str, ...] = ()
    of_last: tuple[str, ...] = ()
    written: Callable[[S, Counts], int] = lambda stage, counts: 0

    @property
    def head(self) -> str:
        """Return what heads its lines of text."""
        return self.stage.__name__


#: the attributes of a stage that may fail, for the lines of its kind
RECOVERY: Mapping[str, WriteAttribute] = {"retry": write_retry, "fallback": write_fallback}

_kinds: dict[type, StageKind[Any]] = {}


def register_stage(kind: StageKind[S]) -> StageKind[S]:
    """Make a kind of stage known; return it.

    Raises:
        GraphError: if another kind has this class or its name.
    """
    known = next((other for other in _kinds.values() if other.head == kind.head), None)
    if known is not None and known is not kind:
        raise GraphError(
            "a kind of stage is registered already",
            found=kind.head,
            valid="a class of another name",
        )
    _kinds[kind.stage] = kind
    return kind


def kind_of(stage: S) -> StageKind[S]:
    """Return the row of a stage's kind.

    Raises:
        GraphError: if it is of no known kind.
    """
    kind = _kinds.get(type(stage))
    if kind is None:
        raise GraphError(
            "unknown kind of stage",
            found=type(stage).__name__,
            valid=", ".join(kind.head for kind in _kinds.values()),
            hint="register_stage(StageKind(...)) makes a kind known",
        )
    return kind


def engines_of(stage: Stage) -> tuple[EngineName, ...]:
    """Return the engines a stage names, in the order they are used."""
    return tuple(getattr(stage, name) for name in kind_of(stage).engines)


def check_name(name: str) -> None:
    """Raise GraphError unless a stage may bear this name."""
    if not name or TURN_MARK in name or name in RESERVED:
        raise GraphError(
            "bad stage name",
            found=repr(name),
            valid=f"non-empty text without {TURN_MARK!r}, neither START nor END",
        )


def settle(stage: Stage, **derived: Any) -> None:
    """Check a stage's name and set what follows from its fields; an output defaults to the name.

    Raises:
        GraphError: on a bad name.
    """
    check_name(stage.name)
    check_recovery(stage)
    if not stage.output:
        derived["output"] = ValueName(stage.name)
    for field_name, value in derived.items():
        object.__setattr__(stage, field_name, value)


def check_positive(stage: Stage, option: str) -> None:
    """Raise GraphError unless an option is ``None``, an integer from 1 or an input."""
    value = getattr(stage, option)
    if value is not None and not is_count(value) and not is_input(value):
        raise option_refused(stage, option, "an integer from 1")


def option_refused(stage: Stage, option: str, valid: str) -> GraphError:
    """Return the error for an option of a stage that has another value than these."""
    return GraphError(
        "stage option out of range",
        where=f"{option} of stage {stage.name!r}",
        found=repr(getattr(stage, option)),
        valid=valid,
    )


def is_text(value: object) -> bool:
    """Tell whether a line's value is a text."""
    return isinstance(value, str)


def is_texts(value: object) -> bool:
    """Tell whether a line's value is a list of texts."""
    return isinstance(value, list | tuple) and all(map(is_text, cast("list[object]", value)))


def is_count(value: object) -> bool:
    """Tell whether a line's value is an integer from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def write_plain(value: Any, stage: Stage, names: References) -> Any:
    """Return a value that JSON can say."""
    return value


def write_list(value: Any, stage: Stage, names: References) -> list[Any] | None:
    """Return a tuple of texts for a line, None where there is none."""
    return None if value is None else list(value)


def write_function(field_name: str) -> WriteAttribute:
    def write(value: Any, stage: Stage, names: References) -> Any:
        return names.name(value, f"{stage.name}.{field_name}")

    return write


def write_unless(default: str) -> WriteAttribute:
    """Return what writes a name, left out for the default one."""

    def write(value: Any, stage: Stage, names: References) -> Any:
        return None if value == default else value

    return write
