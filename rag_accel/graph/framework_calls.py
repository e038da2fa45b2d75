"""Functions that call a part of a framework's program, in a graph made of that program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from rag_accel.graph.nodes import END, RESERVED, START, TURN_MARK
from rag_accel.graph.ragraph import RAGraph


class FrameworkCall(ABC):
    """A call of one part of a program, in the two forms that frameworks have.

    What the part calls belongs to the graph's request, as it does in an accelerated program.

    Args:
        program: names the program, for what the scheduler learns of it.
    """

    __slots__ = ("program",)

    def __init__(self, program: str) -> None:
        self.program = program

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the part in this thread."""

    @abstractmethod
    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call the part on this loop, for ``Accelerator.arun``."""


def is_framework_call(function: object) -> TypeGuard[FrameworkCall]:
    """Tell whether a stage's function is one; asks nothing of the function itself."""
    return issubclass(type(function), FrameworkCall)


class PlanBuilder:
    """The stages of a program's graph, with names that nothing else in it has.

    Args:
        graph: what they are added to, without stages.
    """

    def __init__(self, graph: RAGraph) -> None:
        self.graph = graph
        self._values = set[str]()
        self._taken: set[str] = {*graph.freeze().inputs, *RESERVED}

    def add(
        self, name: str, call: Callable[..., Any], *inputs: str, after: Sequence[str] = ()
    ) -> str:
        """Add a call after what writes its inputs; return its name, which is its value's, too.

        Args:
            name: the name, numbered if it is taken.
            call: the call.
            inputs: inputs of the graph and values of earlier stages.
            after: further stages that it waits for.
        """
        waits = [value for value in inputs if value in self._values]
        unique = self.add_unlinked(name, call, *inputs)
        self.graph.add_edge(tuple(dict.fromkeys((*waits, *after))) or START, unique)
        return unique

    def add_unlinked(self, name: str, call: Callable[..., Any], *inputs: str) -> str:
        """Add a call that no edge leads to yet; otherwise as ``add``."""
        wanted = unique = name.replace(TURN_MARK, "_") or "_"
        number = 1
        while unique in self._taken:
            number += 1
            unique = f"{wanted}-{number}"
        self._values.add(unique)
        self._taken.add(unique)
        self.graph.add_function(unique, call, inputs=inputs)
        return unique

    def end(self, value: str) -> RAGraph:
        """Return the graph, whose result is the value of its last stage."""
        return self.graph.add_edge(value, END)
