"""Functions that call a part of a framework's program, in a graph made of that program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeGuard


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
