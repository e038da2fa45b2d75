"""Messages that the driver has not read yet; a quiet message wakes no thread.

A message that no caller waits for, such as a call that has begun and ended where its caller is,
need not wake the driver's thread: it is read before the next message, so every decision knows it.
Waking the thread for it would take the interpreter from the program twice a call.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Any, Final

from rag_accel.scheduler.messages import Event, Fact

#: an event with what belongs to it, or a fact for which nothing had to be decided; without either,
#: a question, or ``None`` to stop
Message = tuple[Event | Fact | None, Any]

#: longest time in seconds that a quiet message stays unseen, and how many may
REPORT_S: Final = 0.05
MAX_QUIET: Final = 256


class Mailbox:
    """Messages in the order in which they came; one thread waits for them, any thread writes.

    Writing takes no lock that a finalizer or a signal's handler could meet again.
    """

    __slots__ = ("_is_asleep", "_unwoken", "messages")

    def __init__(self) -> None:
        #: oldest first; only the thread that reads them takes them away
        self.messages: deque[Message] = deque()
        #: held unless the reader has been woken and has not noticed yet
        self._unwoken = threading.Lock()
        self._unwoken.acquire()
        #: the reader waits for a wake and for nothing else
        self._is_asleep = False

    def __len__(self) -> int:
        return len(self.messages)

    def add(self, message: Message) -> None:
        """Bring a message and wake no thread: the writer sees to it that it is read."""
        self.messages.append(message)

    def put(self, message: Message) -> None:
        """Bring a message and wake the reader."""
        self.messages.append(message)
        self.wake()

    def put_quietly(self, message: Message) -> None:
        """Bring a message that is seen with the next one, or soon."""
        self.messages.append(message)
        if self._is_asleep or len(self.messages) >= MAX_QUIET:
            self.wake()

    def wait(self, timeout_s: float = math.inf) -> None:
        """Return once there is a message or a wake-up, at the latest after ``timeout_s``.

        It may return without any of these: a woken thread may find that another read the message.
        """
        # After a message more may follow quietly for a while; then the thread sleeps.
        short_s = min(timeout_s, REPORT_S)
        if self.messages or self._is_woken(short_s) or self.messages or short_s == timeout_s:
            return
        self._is_asleep = True
        try:
            if not self.messages:  # one may have come before its writer saw that we sleep
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
            return self.messages.popleft()
        except IndexError:
            raise Empty from None

    def _is_woken(self, timeout_s: float) -> bool:
        return self._unwoken.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
