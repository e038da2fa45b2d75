"""The stage that runs the user's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import PrimitiveKind
from rag_accel.graph.list_functions import (
    ItemFunction,
    ListFunction,
    TextFunction,
    UnionFunction,
    is_pure,
)
from rag_accel.graph.nodes import NO_OUTPUT, StageName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    StageKind,
    Step,
    register_stage,
    settle,
    write_function,
)
from rag_accel.graph.stages.retry import Constant, Retry, refuse_engine


@dataclass(frozen=True, slots=True)
class Function:
    """A stage of opaque user code, sync or async.

    ``fn`` is called with the values of ``inputs`` in order or, with ``reads_all``, with the one
    mapping of all values. What it returns is the output.
    """

    name: StageName
    fn: Callable[..., Any]
    inputs: tuple[ValueName, ...] = ()
    reads_all: bool = False
    output: ValueName = NO_OUTPUT
    retry: int | Retry | None = None
    fallback: Constant | None = None
    engine: None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self)
        refuse_engine(self, "Constant(value): no engine runs the user's code")

    @property
    def items(self) -> int | None:
        """Return how many items it reads off a completion, if it does."""
        return self.fn.item_count if isinstance(self.fn, ListFunction) else None

    @property
    def item(self) -> int | None:
        """Return which item of a list it takes, if it does."""
        return self.fn.item_place if isinstance(self.fn, ItemFunction) else None

    @property
    def union(self) -> str | None:
        """Return how it joins lists, if it does."""
        return "prefix" if isinstance(self.fn, UnionFunction) else None

    @property
    def tokens(self) -> int | None:
        """Return how many tokens its text has, about, if it tells."""
        return self.fn.about_tokens if isinstance(self.fn, TextFunction) else None

    @property
    def pure(self) -> int | None:
        """Return 1 if it is declared pure."""
        return 1 if is_pure(self.fn) else None


def _written(stage: Function, counts: Counts) -> int:
    # What is made of documents is mostly all of them: merged, filtered, reordered.
    return sum(counts.get(name, 0) for name in stage.inputs)


register_stage(
    StageKind(
        Function,
        lambda stage, engines, counts: (Step(PrimitiveKind.FUNCTION),),
        engines=(),
        line={"fn": write_function("fn"), **RECOVERY},
        of_last=("fn", "items", "item", "union", "tokens", "pure"),
        written=_written,
    )
)
