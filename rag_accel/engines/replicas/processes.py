"""Processes that host engines, as those who use them see them: started, called and ended.

``child_process.py`` has those of this machine, ``ray/library.py`` the actors of Ray; tests have
some in their own process.
"""

from __future__ import annotations

from typing import Any, Protocol

#: Most seconds in which the answer of a call that has ended is fetched.
_FETCH_S = 1.0


class HostGoneError(Exception):
    """A process is gone, for now or for good.

    Args:
        text: how it ended, as far as is known.
        is_final: whether it is started no more.
    """

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


class HostCall(Protocol):
    """A call of a method in another process, under way or ended."""

    def result(self, timeout_s: float) -> Any:
        """Return what the method returned.

        Raises:
            HostGoneError: the process is gone.
            TimeoutError: it has not ended in time.
            Exception: what the method raised.
        """
        ...

    def is_done(self) -> bool:
        """Tell whether it has ended, in whatever way; at once."""
        ...


class HostProcess(Protocol):
    """A process that hosts an engine, see ``EngineHost``; may be used on any thread."""

    def call(self, method: str, *arguments: Any) -> HostCall:
        """Begin a call of a method.

        Raises:
            HostGoneError: no process can be started any more.
        """
        ...

    def end(self, *, restart: bool) -> None:
        """End it at once; another one is started in its place where ``restart`` says so."""
        ...


def failure_of(call: HostCall) -> Exception | None:
    """Return what a call raised; None where it has not, or goes on."""
    if not call.is_done():
        return None
    try:
        call.result(_FETCH_S)
    except Exception as error:
        return error
    return None
