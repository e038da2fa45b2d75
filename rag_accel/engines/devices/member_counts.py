"""Counters of the members of a group, by their names in metrics."""

from __future__ import annotations

import re
from collections import Counter

from rag_accel.engines.devices.worker import Task

_NO_WORD = re.compile(r"\W+")


class MemberCounts(Counter[str]):
    """Counters named ``<member>_<event>``, and those of the group."""

    def count(self, member: str, event: str, number: int = 1) -> None:
        self[f"{_NO_WORD.sub('_', member)}_{event}"] += number

    def count_step(self, task: Task, seconds: float) -> None:
        """Count a step that has ended."""
        name = task.batch.member
        self.count(name, "steps")
        self.count(name, "texts", sum(len(part.texts) for part in task.parts))
        self.count(name, "tokens", task.batch.cost)
        self.count(name, "busy_ms", round(seconds * 1000))
