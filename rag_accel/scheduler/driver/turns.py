"""Messages in turns: which thread reads what has come, and in which order."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any, Final

from rag_accel.clock import Clock
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.driver.handling import EventHandler
from rag_accel.scheduler.messages import (
    CallMade,
    EngineName,
    Event,
    Fact,
    Reported,
    RequestId,
    Tick,
)
from rag_accel.system.forks import forks

# Messages that the driver has not read yet; a quiet message wakes no thread.
#
# A message that no caller waits for, such as a call that has begun and ended where its caller is,
# need not wake the driver's thread: it is read before the next message, so every decision knows it.
# Waking the thread for it would take the interpreter from the program twice a call.


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


# Borrowed calls that need not wait, and programs that have made no others: counted where they run,
# reported once they have ended.


class BegunCalls:
    """The calls that run without having asked for a permit, and the programs not opened yet.

    Args:
        now: the driver's clock, in seconds.
        mailbox: takes what is to be told of a call that has ended.
    """

    __slots__ = ("forks", "mailbox", "now", "programs", "running")

    def __init__(self, now: Callable[[], float], mailbox: Mailbox) -> None:
        self.now = now
        self.mailbox = mailbox
        self.forks = forks.number
        #: ids of the calls; single operations on a dict need no lock
        self.running: dict[int, None] = {}
        #: requests of programs; as above
        self.programs: dict[RequestId, None] = {}

    def __len__(self) -> int:
        return len(self.running) + len(self.programs)


class BegunCall:
    """A borrowed call that need not wait for a permit.

    Its caller keeps it before calling ``start``: an interrupted caller can still ``end`` it.

    Args:
        calls: where it is counted while it runs.
        request: whose call it is.
        name: of the call, unique within its request.
        arrived_at: when its request began, on the driver's clock in seconds.
        began_at: when it began, on the same clock.
    """

    __slots__ = (
        "_arrived_at",
        "_began_at",
        "_calls",
        "_ended_at",
        "_engine",
        "_kind",
        "_name",
        "_request",
    )

    def __init__(
        self,
        calls: BegunCalls,
        request: RequestId,
        name: str,
        engine: EngineName,
        kind: PrimitiveKind,
        arrived_at: float,
        began_at: float,
    ) -> None:
        self._calls = calls
        self._request = request
        self._name = name
        self._engine = engine
        self._kind = kind
        self._arrived_at = arrived_at
        self._began_at = began_at
        self._ended_at: float | None = None

    @property
    def ended(self) -> tuple[EngineName, float] | None:
        """Return the engine and when the call ended, if it has."""
        return None if self._ended_at is None else (self._engine, self._ended_at)

    def start(self) -> None:
        """Count it among those that run."""
        self._calls.running[id(self)] = None

    def end(self, ok: bool) -> None:
        """Report it, if it was counted; may be repeated. In a forked child it is the parent's."""
        calls = self._calls
        if calls.running.pop(id(self), self) is self or forks.number != calls.forks:
            return
        self._ended_at = calls.now()
        made = CallMade(
            self._request,
            self._name,
            self._engine,
            self._kind,
            self._arrived_at,
            self._began_at,
            self._ended_at,
            ok,
        )
        calls.mailbox.put_quietly((made, None))


# Messages are handled one after another, in the driver's thread or in that of an engine.
#
# An engine's thread that reports a step deals with its report itself, with whatever else has come
# meanwhile, and may find its own next step among what follows. Another thread would have to be
# given the interpreter first, twice a step: under a program whose threads all compute, each time
# takes as long as a small step.


#: the mailbox cannot wait for ever, and an early look at the clock costs nothing
MAX_WAIT_S = 3600.0

#: most messages that an engine's thread deals with before it goes on with its engine
MAX_DEALT = 64


class Turns:
    """The right to handle messages, held by one thread at a time: that thread has the turn.

    A caller's thread never does: an interrupt of the user's could come in the middle.

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
        """Deal with what there is, or with as many messages; the turn is the caller's."""
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
        """Turn away what came after the driver's last look; any thread once it has ended."""
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
