"""Answers of servers to equal calls in flight: the first caller asks, the others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rag_accel.engines.http.endpoints import loop_runs
from rag_accel.system.locks import ForkedAnew

_Answer = TypeVar("_Answer")


@dataclass(slots=True, eq=False)
class _Flight:
    """A call in flight; its answers are empty if it has failed."""

    thread: int = field(default_factory=threading.get_ident)
    answers: Future[list[Any]] = field(default_factory=Future[list[Any]])


class SharedAnswers(ForkedAnew):
    """The calls in flight of one accelerator's programs. Thread-safe."""

    def renew(self) -> None:
        """Forget the flights, whose callers are another process's."""
        self._flights: dict[Hashable, _Flight] = {}

    def ask(
        self,
        key: Hashable,
        call: Callable[[], _Answer],
        is_whole: Callable[[_Answer], bool],
        timeout_s: float | None = None,
    ) -> _Answer:
        """Return what a call returns, or the whole answer of an equal call in flight.

        Args:
            key: equal where calls are; its equality runs no code of a program's.
            call: asks the server; its errors are this caller's.
            is_whole: tells whether others may have the answer too; may raise where it is an error.
            timeout_s: seconds to wait for an equal call before this one is made; None for ever.
        """
        flight, answers = _Flight(), list[Any]()
        try:
            leader = self._flights.setdefault(key, flight)
            # Neither for a call that this thread has interrupted, nor where a loop would stand.
            if leader.thread != flight.thread and not loop_runs():
                with suppress(TimeoutError):
                    found = leader.answers.result(timeout_s)
                    if found:
                        return found[0]
            answer = call()
            if leader is flight:
                with suppress(Exception):  # an answer that cannot be read is its caller's error
                    answers = [answer] if is_whole(answer) else []
            return answer
        finally:
            if self._flights.get(key) is flight:  # not in a fork's child
                del self._flights[key]
            flight.answers.set_result(answers)
