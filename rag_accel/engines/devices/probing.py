"""Probes of members that have joined, to see that they are still the same model.

A probe holds fixed texts and none of any request. It runs on the member's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rag_accel.clock import Clock
from rag_accel.engines.devices.fidelity import checked, compare, probe_texts
from rag_accel.engines.devices.joining import Joined, Joining, NotJoined, compared
from rag_accel.engines.devices.limits import MemberLimits
from rag_accel.engines.devices.members import InterruptibleMember, Member, MemberChangedError
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role

_NUM_SAMPLES = 4  # of the probes, short ones, embedded as queries
_WITHOUT_ROOM = 16  # times as many texts in calls that have no room for a probe


class MemberProber:
    """Comparisons of members with the first one's vectors of when they joined.

    Args:
        joining: the members and the expected vectors of the probes.
        clock: measures the first steps of members that join again.
        tolerance: as of ``join``.
        threads: with how many threads members here compute meanwhile.
        limits: how long a probe may take, and how often one is due.
    """

    def __init__(
        self,
        joining: Joining,
        clock: Clock,
        tolerance: float | None,
        threads: int,
        limits: MemberLimits,
    ) -> None:
        self._reference = joining.reference
        self._repeated = {joined.member.name: joined.repeated for joined in joining.joined}
        self._expected = joining.expected
        self._clock = clock
        self._tolerance = tolerance
        self._threads = threads
        self._limits = limits

    def rejoined(self, member: Member) -> Joined | NotJoined:
        """Return a member that may join again, or why it may not."""
        with _limited(member, self._limits.probe_s):
            found = compared(
                member,
                self._expected,
                self._clock,
                self._tolerance,
                self._threads,
                first=self._repeated[member.name] if member.name == self._reference else None,
            )
        if isinstance(found, Joined):
            self._repeated[member.name] = found.repeated
        return found

    def require_same(self, member: Member) -> None:
        """Compare the vectors of a few probes: directions, components and lengths.

        Raises:
            MemberChangedError: they are those of another model.
            Exception: what the member raised.
        """
        count = max(1, min(_NUM_SAMPLES, member.max_texts))
        with _limited(member, self._limits.probe_s):
            values = member.embed(probe_texts()[:count], "query", 0)
        self._require(member, self._expected["query"][:count], checked(values, count, None))

    def require_same_vector(self, member: Member, role: Role, number: int, vector: Vector) -> None:
        """Compare the vector of one probe, ``[dim], float32``.

        Raises:
            MemberChangedError: it is that of another model.
        """
        self._require(member, self._expected[role][number : number + 1], vector[None])

    def _require(self, member: Member, expected: Vector, found: Vector) -> None:
        where = f"member {member.name}"
        what = "a member embeds as another model than the one that joined"
        if found.shape != expected.shape:
            dimensions = f"dimension {found.shape[1]}"
            raise MemberChangedError(
                what, where=where, found=dimensions, valid=f"{expected.shape[1]}"
            )
        fidelity, joined = compare(expected, found), self._repeated[member.name]
        if joined is None or not fidelity.is_same_as(joined, self._tolerance):
            raise MemberChangedError(
                what,
                where=where,
                found=str(fidelity),
                valid="the vectors of the probes as when it joined",
                hint="serve the same model there again, or make another accelerator",
            )


class DueComparison:
    """The schedule of comparisons of a member: after a failure, and by time and texts.

    Args:
        clock: the time.
        every_s: seconds between two comparisons of a member in use.
        every_texts: texts after which one of a server is due, with the texts of a call.
    """

    def __init__(self, clock: Clock, every_s: float, every_texts: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._every_texts = every_texts
        self._compared_at = clock.now()
        self._has_failed = False
        self._num_texts = 0
        self._num_probes = 0

    @property
    def is_due(self) -> bool:
        """Tell whether the member must be compared before it is given any text."""
        return (
            self._has_failed
            or self._clock.now() - self._compared_at >= self._every_s
            or self._num_texts >= _WITHOUT_ROOM * max(1.0, self._every_texts)
        )

    def probe_with(self, num_texts: int, most_texts: int) -> int | None:
        """Note the texts of a call to a server; return which probe it should hold too, if any."""
        self._num_texts += num_texts
        if self._num_texts < self._every_texts or num_texts >= most_texts:
            return None
        self._num_probes += 1
        return self._num_probes % _NUM_SAMPLES

    def failed(self) -> None:
        """Let the member be compared before its next step."""
        self._has_failed = True

    def compared(self) -> None:
        """Note that the member was the same just now."""
        self._compared_at = self._clock.now()
        self._has_failed = False
        self._num_texts = 0


@contextmanager
def _limited(member: Member, seconds: float) -> Iterator[None]:
    """Interrupt the calls of a member that can be interrupted, should they take too long."""
    if not isinstance(member, InterruptibleMember):
        yield
        return
    timer = threading.Timer(seconds, member.interrupt)
    timer.daemon = True
    timer.name = f"rag-accel-limit-{member.name}"
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
