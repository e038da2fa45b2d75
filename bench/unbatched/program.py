"""Say what a program under several users is, and what they ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain_core.runnables import Runnable

from bench.unbatched.leaves import SUBJECTS, LeafCalls

_ASKED = ("When did the {} open?", "Who keeps the {}?", "What happened to the {}?")


@dataclass(frozen=True, slots=True)
class Program:
    """A fresh program and what one request of it is.

    Args:
        name: how results name it.
        runnable: the plain program.
        turns: gives, of a question, the inputs of the calls that make the request.
        read: gives, of the output of a call, what has to be equal in all arms.
        calls: counts the leaf calls of ``runnable``.
    """

    name: str
    runnable: Runnable[Any, Any]
    turns: Callable[[str], Sequence[Any]]
    read: Callable[[Any], Any]
    calls: LeafCalls

    async def ask(self, runnable: Runnable[Any, Any], question: str) -> list[Any]:
        """Make one request, on a thread of its own, of the program or of what was made of it."""
        thread_id = str(uuid4())
        return [
            self.read(await runnable.ainvoke(turn, {"configurable": {"thread_id": thread_id}}))
            for turn in self.turns(question)
        ]


def questions(users: int) -> list[str]:
    """Return a question for each user; no two are equal."""
    return [
        f"{_ASKED[user % len(_ASKED)].format(SUBJECTS[user % len(SUBJECTS)])} Visitor {user} asks."
        for user in range(users)
    ]
