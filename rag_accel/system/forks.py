"""The forks that led to this process, counted so that a call can tell without asking the system."""

from __future__ import annotations

import os
from collections.abc import Callable


class _Forks:
    """A count of the forks since Python started.

    Attributes:
        number: equal for two moments only if both were in the same process.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def add(self) -> None:
        """Count one: this process is a forked child now."""
        self.number += 1


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register functions as ``os.register_at_fork`` does, where the system has forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


forks = _Forks()
at_fork(after_in_child=forks.add)
