"""Functions that call a part of a framework's program, in a graph made of that program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, TypeGuard

from rag_accel.graph.nodes import END, RESERVED, START, TURN_MARK
from rag_accel.graph.ragraph import RAGraph


class FrameworkCall:
    """A call of one part of a program, in the two forms that frameworks have.

    What the part calls belongs to the graph's request, as it does in an accelerated program.

    Args:
        name: names the part.
        call: calls the part in a thread.
        acall: calls it on a loop, for ``Accelerator.arun``.
        program: names the program, for what the scheduler learns of it.
        holder: what must live as long as this.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        acall: Callable[..., Awaitable[Any]],
        program: str,
        holder: object = None,
    ) -> None:
        self.__name__, self.program = name, program
        self.call, self.acall, self._holder = call, acall, holder

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)


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
        self, name: str, call: Callable[..., Any], *inputs: str, after: Sequence[str] | None = ()
    ) -> str:
        """Add a call after what writes its inputs; return its name, which is its value's, too.

        Args:
            name: the name, numbered if it is taken.
            call: the call.
            inputs: inputs of the graph and values of earlier stages.
            after: further stages that it waits for; None if the caller adds the edges to it.
        """
        waits = [value for value in inputs if value in self._values]
        wanted = unique = name.replace(TURN_MARK, "_") or "_"
        numbers = count(2)
        while unique in self._taken:
            unique = f"{wanted}-{next(numbers)}"
        self._values.add(unique)
        self._taken.add(unique)
        self.graph.add_function(unique, call, inputs=inputs)
        if after is not None:
            self.graph.add_edge(tuple(dict.fromkeys((*waits, *after))) or START, unique)
        return unique

    def end(self, value: str) -> RAGraph:
        """Return the graph, whose result is the value of its last stage."""
        return self.graph.add_edge(value, END)
