"""The forks that led to this process, counted so that a call can tell without asking the system."""

from __future__ import annotations

import os


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


forks = _Forks()
os.register_at_fork(after_in_child=forks.add)
