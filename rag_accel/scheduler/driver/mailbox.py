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
    """Keep messages in the order in which they came; one thread reads, any thread writes.

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

    def put(self, message: Message) -> None:
        """Bring a message and wake the reader."""
        self._messages.append(message)
        self._wake()

    def put_quietly(self, message: Message) -> None:
        """Bring a message that is seen with the next one, or soon."""
        self._messages.append(message)
        if self._is_asleep or len(self._messages) >= MAX_QUIET:
            self._wake()

    def get(self, timeout_s: float = math.inf) -> Message:
        """Return the oldest message; raises Empty if there is none for ``timeout_s`` seconds."""
        left_s = timeout_s
        while not self._messages:
            # After a message more may follow quietly for a while; then the thread sleeps.
            wait_s = min(left_s, REPORT_S)
            if not self._is_woken(wait_s) and not self._messages:
                left_s -= wait_s
                if left_s <= 0 or not self._sleep(left_s):
                    raise Empty
                break
        return self._messages.popleft()

    def get_nowait(self) -> Message:
        """Return the oldest message; raises Empty if there is none."""
        try:
            return self._messages.popleft()
        except IndexError:
            raise Empty from None

    def _sleep(self, timeout_s: float) -> bool:
        """Wait until any message comes; tell whether one did."""
        self._is_asleep = True
        try:
            while not self._messages:  # one may have come before its writer saw that we sleep
                if not self._is_woken(timeout_s):
                    return bool(self._messages)
            return True
        finally:
            self._is_asleep = False

    def _wake(self) -> None:
        if self._unwoken.locked():
            with suppress(RuntimeError):  # another writer was faster
                self._unwoken.release()

    def _is_woken(self, timeout_s: float) -> bool:
        return self._unwoken.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
