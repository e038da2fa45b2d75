"""The accelerators of this process that are still in use, and requests of programs on them."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rag_accel.accelerator.program_beginnings import ProgramBeginnings
from rag_accel.accelerator.span_export import SpanExport
from rag_accel.config import Options
from rag_accel.leaves.early_answers import AskedPrompt
from rag_accel.leaves.early_beginnings import NotedPrompt
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.leaves.recorded_prompts import Values
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.driver.ending import end_daemons_quietly
from rag_accel.scheduler.messages import EngineName, ProgramLeft, RequestClosed, RequestOpened

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator

live: weakref.WeakSet[Accelerator] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close every accelerator still open; runs at interpreter exit."""
    end_daemons_quietly()
    for accelerator in list(live):
        accelerator.close()


def forget_program(program: str) -> None:
    """Have every accelerator forget a program whose object is gone."""
    for accelerator in list(live):
        accelerator.forget_program(program)


def keeping_texts(namespace: str | None) -> list[Accelerator]:
    """Return the accelerators whose engines keep what they have computed of documents.

    Args:
        namespace: tenant; None for all.
    """
    return [
        accelerator
        for accelerator in list(live)
        if accelerator.keeps_texts and namespace in (None, accelerator.options.namespace)
    ]


class ProgramRequests:
    """The part of an ``Accelerator`` that opens and closes requests of intercepted programs.

    Every instance is an ``Accelerator``, as identities expect.
    """

    options: Options
    _driver: Driver
    _beginnings: ProgramBeginnings
    _spans: SpanExport | None

    def open_request(
        self,
        program: str,
        deadline_s: float | None = None,
        given: Callable[[], Values] = dict,
    ) -> RequestIdentity:
        """Start a run of an intercepted program; ``close_request`` must follow.

        Args:
            program: names the accelerated object.
            deadline_s: seconds until it must have ended.
            given: reads what it was given, if that is asked for.
        """
        identity = self.anonymous(program, deadline_s)
        identity.given = given
        if identity.spans is not None:
            identity.spans.begin()
        if program in self._beginnings.programs:
            self._beginnings.attach(identity)
        request, now, deadline = identity.request, identity.arrived_at, identity.deadline
        if self.options.on_full == "raise":  # one that has begun is not to be refused later on
            self._driver.note(RequestOpened(request, program, now, deadline))
        elif self._driver.begin_program(request, program, now, deadline):
            identity.begin_quietly()
        return identity

    def open_late(self, identity: RequestIdentity) -> None:
        """Have the scheduler know of a run that it need not know of until now."""
        begun = identity.last_call
        opened = RequestOpened(
            *(identity.request, identity.program, identity.arrived_at, identity.deadline),
            last_call=begun and begun.ended,
            was_reported=True,
        )
        self._driver.open_program(opened)

    def close_request(self, identity: RequestIdentity) -> None:
        """End a run of an intercepted program."""
        if identity.beginnings is not None:
            identity.beginnings.close()
        if identity.end():
            self._driver.end_program(identity.request)
        else:
            self._driver.note(RequestClosed(identity.request, self._driver.now()))

    def forget_program(self, program: str) -> None:
        """Forget the learned behaviour of a program whose object is gone; from any thread."""
        self._beginnings.programs.pop(program, None)
        self._driver.note(ProgramLeft(program))

    @contextmanager
    def request(self, program: str) -> Iterator[RequestIdentity]:
        """Run a block as one request."""
        identity = self.open_request(program)
        try:
            yield identity
        finally:
            self.close_request(identity)

    def begins_prompts(self, engine: EngineName) -> bool:
        """Tell whether an engine's prompts are begun before they are known as a whole."""
        return self._beginnings.are_begun_by(engine)

    def drawn_prompts(self, program: str) -> list[str]:
        """Return what runs of a program have shown of its prompts that are begun early, in order.

        Literals are told by their length, values by their name, and what differs as dots.
        """
        recorded = self._beginnings.programs.get(program)
        if recorded is None:
            return []
        with recorded.lock:
            places = sorted(recorded.places.items())
            drawn = [(place, record.drawn()) for place, record in places]
        return [f"prompt {place + 1}: {text}" for place, text in drawn if text]

    def note_prompt(self, identity: RequestIdentity, asked: AskedPrompt) -> NotedPrompt | None:
        """Record a prompt that is about to be computed.

        None where no prompt of the engine can be begun before it is known as a whole.
        """
        if not identity.program or not self._beginnings.are_begun_by(asked.engine):
            return None
        run = identity.beginnings or self._beginnings.attach(identity)
        return run.note_prompt(asked)

    def left_s(self, identity: RequestIdentity) -> float | None:
        """Return the seconds until a run's deadline, at least 0; None without one."""
        deadline = identity.deadline
        return None if deadline is None else max(0.0, deadline - self._driver.now())

    def anonymous(self, program: str = "", deadline_s: float | None = None) -> RequestIdentity:
        """Return an identity for a run that is not opened, such as a single call's."""
        now = self._driver.now()
        limit = self.options.deadline_s if deadline_s is None else deadline_s
        deadline = None if limit is None else now + limit
        request = self._driver.new_request()
        identity = RequestIdentity(self, request, now, deadline, program)  # pyright: ignore[reportArgumentType]
        if self._spans is not None:
            identity.spans = self._spans.request(request, program, limit)
        return identity
