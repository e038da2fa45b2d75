"""Hold what the driver has not looked at yet; a quiet message wakes nobody.

What nobody waits for, such as a call that has begun and ended where its caller is, need not wake
the driver's thread: it is looked at before whatever comes next, so every decision knows it. Waking
the thread for it would take the interpreter from the program twice a call.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Any, Final

from rag_accel.scheduler.messages import Event

#: an event with what belongs to it; without an event, a question, or ``None`` to stop
Message = tuple[Event | None, Any]

#: longest time in seconds that a quiet message stays unseen, and how many may
REPORT_S: Final = 0.05
MAX_QUIET: Final = 256


class Mailbox:
    """Keep messages in the order in which they came; one thread waits for them, any thread writes.

    Writing takes no lock that a finalizer or a signal's handler could meet again.
    """

    __slots__ = ("_is_asleep", "_messages", "_unwoken")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        #: held unless the reader has been woken and has not noticed yet
        self._unwoken = threading.Lock()
        self._unwoken.acquire()
        #: the reader waits for a wake and for nothing else
        self._is_asleep = False

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Bring a message and wake nobody: the writer sees to it that it is read."""
        self._messages.append(message)

    def put(self, message: Message) -> None:
        """Bring a message and wake the reader."""
        self._messages.append(message)
        self.wake()

    def put_quietly(self, message: Message) -> None:
        """Bring a message that is seen with the next one, or soon."""
        self._messages.append(message)
        if self._is_asleep or len(self._messages) >= MAX_QUIET:
            self.wake()

    def wait(self, timeout_s: float = math.inf) -> None:
        """Return once there is a message or somebody wakes, at the latest after ``timeout_s``.

        It may return without any of these: who was woken may find that another read the message.
        """
        # After a message more may follow quietly for a while; then the thread sleeps.
        short_s = min(timeout_s, REPORT_S)
        if self._messages or self._is_woken(short_s) or self._messages or short_s == timeout_s:
            return
        self._is_asleep = True
        try:
            if not self._messages:  # one may have come before its writer saw that we sleep
                self._is_woken(timeout_s - short_s)
        finally:
            self._is_asleep = False

    def wake(self) -> None:
        """Let the reader look."""
        if self._unwoken.locked():
            with suppress(RuntimeError):  # another writer was faster
                self._unwoken.release()

    def get_nowait(self) -> Message:
        """Return the oldest message; raises Empty if there is none."""
        try:
            return self._messages.popleft()
        except IndexError:
            raise Empty from None

    def _is_woken(self, timeout_s: float) -> bool:
        return self._unwoken.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
