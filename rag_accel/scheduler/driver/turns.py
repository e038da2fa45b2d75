"""Deal with messages one after another, in the driver's thread or in that of an engine.

An engine's thread that reports a step deals with its report itself, with whatever else has come
meanwhile, and may find its own next step among what follows. Another thread would have to be given
the interpreter first, twice a step: under a program whose threads all compute, each time takes as
long as a small step.
"""

from __future__ import annotations

import threading
from queue import Empty
from typing import Any

from rag_accel.clock import Clock
from rag_accel.scheduler.driver.handling import EventHandler
from rag_accel.scheduler.driver.mailbox import Mailbox, Message
from rag_accel.scheduler.messages import Event, Tick

#: the mailbox cannot wait for ever, and an early look at the clock costs nothing
MAX_WAIT_S = 3600.0

#: most messages that an engine's thread deals with before it goes on with its engine
MAX_DEALT = 64


class Turns:
    """Let one thread at a time deal with messages: whoever has the turn.

    A caller's thread never does: an interrupt of the user's could come in the middle.

    Args:
        handler: deals with events; belongs to whoever has the turn.
        clock: says when the handler's next time has come.

    Attributes:
        mailbox: what nobody has dealt with yet.
    """

    def __init__(self, handler: EventHandler, clock: Clock) -> None:
        self.mailbox = Mailbox()
        self._handler = handler
        self._clock = clock
        self._turn = threading.Lock()
        self._owner: int | None = None
        #: when the driver's thread looks again by itself
        self._looks_at: float | None = None
        self._is_over = False
        self._has_ended = False
        self._end_lock = threading.RLock()

    @property
    def is_mine(self) -> bool:
        """Tell whether the calling thread has the turn."""
        return self._owner == threading.get_ident()

    @property
    def has_ended(self) -> bool:
        """Tell whether the driver's thread has had its last look."""
        return self._has_ended

    def run(self) -> None:
        """Deal with messages until one says that it is over. The driver's thread."""
        while not self._is_over:
            self.mailbox.wait(self._wait_s())
            with self._turn:
                self._deal(None)
                self._tick()
                self._looks_at = self._handler.state.wake_at
        self._has_ended = True
        self._turn_away()

    def bring(self, message: Message) -> None:
        """Leave a message to the driver's thread."""
        self.mailbox.put(message)
        self._see_whether_too_late()

    def bring_quietly(self, message: Message) -> None:
        """Leave a message that nobody waits for to whoever looks next."""
        self.mailbox.put_quietly(message)

    def bring_and_deal(self, message: Message) -> None:
        """Deal with a message after all that came before it, unless another thread does so."""
        self.mailbox.add(message)
        if not self._turn.acquire(blocking=False):
            self.mailbox.wake()
        else:
            try:
                self._deal(MAX_DEALT)
                is_left = self._is_over or len(self.mailbox) > 0 or self._is_before_look()
            finally:
                self._turn.release()
            # A quiet message that came while this thread had the turn is seen soon.
            if is_left:
                self.mailbox.wake()
        self._see_whether_too_late()

    def _wait_s(self) -> float:
        if self._looks_at is None:
            return MAX_WAIT_S
        return min(MAX_WAIT_S, max(0.0, self._looks_at - self._clock.now()))

    def _is_before_look(self) -> bool:
        """Tell whether the driver's thread would sleep beyond the handler's next time."""
        wake_at = self._handler.state.wake_at
        return wake_at is not None and (self._looks_at is None or wake_at < self._looks_at)

    def _deal(self, most: int | None) -> None:
        """Deal with what there is, or with as many messages; the turn is the caller's."""
        self._owner = threading.get_ident()
        try:
            number = 0
            while not self._is_over and number != most:
                try:
                    event, attached = self.mailbox.get_nowait()
                except Empty:
                    break
                self._deal_with(event, attached)
                number += 1
                # The next wait may be long: nothing of this message may stay alive with it.
                del event, attached
        finally:
            self._owner = None

    def _deal_with(self, event: Event | None, attached: Any) -> None:
        if event is not None:
            self._handler.handle(event, attached, more=len(self.mailbox) > 0)
            return
        self._handler.catch_up()
        if attached is None:
            self._is_over = True
        else:
            attached()

    def _tick(self) -> None:
        wake_at = self._handler.state.wake_at
        if wake_at is not None and self._clock.now() >= wake_at and not self._is_over:
            self._handler.handle(Tick(), None)

    def _see_whether_too_late(self) -> None:
        # Nobody reads the mailbox after the driver's last look, so whoever came too late does.
        if self._has_ended:
            self._turn_away()

    def _turn_away(self) -> None:
        """Turn away what came after the driver's last look; any thread once it has ended."""
        with self._end_lock:
            while True:
                try:
                    event, attached = self.mailbox.get_nowait()
                except Empty:
                    break
                if event is not None:
                    self._handler.take_in(event, attached)
                elif attached is not None:
                    attached()
            self._handler.close()
