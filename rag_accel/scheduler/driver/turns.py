"""Turns: messages are handled one after another, in the driver's thread or in that of an engine.

An engine's thread that reports a step handles its report itself, with whatever else has come
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
from rag_accel.scheduler.messages import Fact, Reported, Tick

#: the mailbox cannot wait for ever, and an early look at the clock costs nothing
MAX_WAIT_S = 3600.0

#: most messages that an engine's thread deals with before it goes on with its engine
MAX_DEALT = 64


class Turns:
    """The right to handle messages, held by one thread at a time: that thread has the turn.

    A caller's thread never does: the user's interrupt could come in the middle.

    Args:
        handler: deals with events; used only on the thread that has the turn.
        clock: says when the handler's next time has come.

    Attributes:
        mailbox: messages that have not been handled yet.
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

    def post(self, message: Message) -> None:
        """Leave a message to the driver's thread."""
        self.mailbox.put(message)
        if self._has_ended:  # nobody reads the mailbox any more, so whoever came too late does
            self._turn_away()

    def post_and_drain(self, message: Message) -> None:
        """Deal with a message after all that came before it, unless another thread does so."""
        self.mailbox.add(message)
        if not self._turn.acquire(blocking=False):
            self.mailbox.wake()
        else:
            try:
                self._deal(MAX_DEALT)
                is_left = self._is_over or bool(self.mailbox.messages) or self._is_before_look()
            finally:
                self._turn.release()
            # A quiet message that came while this thread had the turn is seen soon.
            if is_left:
                self.mailbox.wake()
        if self._has_ended:
            self._turn_away()

    def _wait_s(self) -> float:
        if self._looks_at is None:
            return MAX_WAIT_S
        return min(MAX_WAIT_S, max(0.0, self._looks_at - self._clock.now()))

    def _is_before_look(self) -> bool:
        """Tell whether the driver's thread would sleep beyond the handler's next time."""
        wake_at = self._handler.state.wake_at
        return wake_at is not None and (self._looks_at is None or wake_at < self._looks_at)

    def _deal(self, most: int | None) -> None:
        """Handle the messages there are, ``most`` at most; the caller has the turn."""
        self._owner = threading.get_ident()
        try:
            number = 0
            messages = self.mailbox.messages
            while messages and not self._is_over and (most is None or number < most):
                event, attached = messages.popleft()
                if isinstance(event, Fact):
                    number += self._report(event)
                elif event is not None:
                    self._handler.handle(event, attached, more=bool(messages))
                else:
                    self._answer(attached)
                number += 1
                # The next wait may be long: nothing of this message may stay alive with it.
                del event, attached
        finally:
            self._owner = None

    def _report(self, first: Fact) -> int:
        """Deal with a fact and those right behind it as one event; return how many more."""
        messages = self.mailbox.messages
        facts = [first]
        while messages and isinstance(fact := messages[0][0], Fact):
            facts.append(fact)
            messages.popleft()
        self._handler.handle(Reported(tuple(facts)), None, more=bool(messages))
        return len(facts) - 1

    def _answer(self, attached: Any) -> None:
        self._handler.catch_up()
        if attached is None:
            self._is_over = True
        else:
            attached()

    def _tick(self) -> None:
        wake_at = self._handler.state.wake_at
        if wake_at is not None and self._clock.now() >= wake_at and not self._is_over:
            self._handler.handle(Tick(), None)

    def _turn_away(self) -> None:
        """Refuse messages that came after the driver's last look; any thread may."""
        with self._end_lock:
            while True:
                try:
                    event, attached = self.mailbox.get_nowait()
                except Empty:
                    break
                if event is not None and not isinstance(event, Fact):
                    self._handler.take_in(event, attached)
                elif attached is not None:
                    attached()
            self._handler.close()
