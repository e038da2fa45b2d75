"""State of each member of a group in words: joined, stays out, paused, or has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rag_accel.engine_api import Health
from rag_accel.engine_api.health import best_state
from rag_accel.engines.devices.joining import Joined, Joining
from rag_accel.engines.devices.plan import MemberLimits
from rag_accel.errors import EngineLostError, RagAccelError


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a member takes no work.

    Args:
        text: for ``explain()``, the log and the callers whose work ended; may quote a text.
        public: for a readiness probe; holds nothing of any request.
    """

    text: str
    public: str


def reason_of(error: BaseException, before: str = "") -> Reason:
    """Return an error of a member as a reason, after the text ``before``."""
    public = error.what if isinstance(error, RagAccelError) else type(error).__name__
    text = str(error) if isinstance(error, EngineLostError) else repr(error)
    return Reason(before + text, before + public)


@dataclass(frozen=True, slots=True)
class Absence:
    """A member that takes nothing until it has been probed.

    Args:
        why: the failure.
        probes: how many probes have failed.
        asked_at: when the next one begins.
    """

    why: Reason
    probes: int
    asked_at: float


class Attendance:
    """Absent members of a group, their reasons and the times of their next probes.

    Args:
        joining: the members that joined and those that did not.
        limits: how long members wait for a probe.
    """

    def __init__(self, joining: Joining, limits: MemberLimits) -> None:
        self._joined = {joined.spec.name: joined for joined in joining.joined}
        self._stays_out = dict(joining.excluded)
        self._awaited = set(joining.unreached)
        self._has_left: dict[str, Reason] = {}
        self._away: dict[str, Absence] = {}
        self._limits = limits

    def has_left(self, member: str) -> bool:
        return member in self._has_left or member in self._stays_out

    def is_away(self, member: str) -> bool:
        """Tell whether a member takes nothing until it has been probed."""
        return member in self._away

    def leave(self, member: str, why: Reason) -> None:
        """Note that a member is gone for good."""
        self._away.pop(member, None)
        self._has_left[member] = why

    def suspend(self, member: str, why: Reason, now: float) -> float:
        """Note that a member is away, or still is; return the seconds until it is probed.

        A member on this machine's cores is probed at once: nothing there comes back by waiting.
        """
        last = self._away.get(member)
        probes = 0 if last is None else last.probes + 1
        is_here = self._joined[member].spec.on_cores
        after_s = 0.0 if is_here else self._limits.pause_s(probes)
        self._away[member] = Absence(why, probes, now + after_s)
        return after_s

    def is_awaited(self, member: str) -> bool:
        """Tell whether a member has never been reached."""
        return member in self._awaited

    def stay_out(self, member: str, why: str) -> None:
        """Note that a member that was awaited does not join."""
        self._away.pop(member, None)
        self._awaited.discard(member)
        del self._joined[member]
        self._stays_out[member] = why

    def rejoin(self, joined: Joined) -> None:
        """Note that a member takes work again, or for the first time."""
        self._away.pop(joined.spec.name, None)
        self._awaited.discard(joined.spec.name)
        self._joined[joined.spec.name] = joined

    def lines(self, now: float) -> tuple[str, ...]:
        """Return a line for each member: how near its vectors are, or why it takes no part."""
        lines = [f"{name}: {self._state_of(name, now)}" for name in self._joined]
        return (*lines, *(f"{name}: stays out: {why}" for name, why in self._stays_out.items()))

    def reasons(self, now: float, admitted: frozenset[str] | None) -> str:
        """Return why none of the members that joined, or of those admitted, takes work."""
        names = [name for name in self._joined if admitted is None or name in admitted]
        return "; ".join(f"{name}: {self._state_of(name, now)}" for name in names)

    def health(self, name: str, refuses_until: Mapping[str, float], now: float) -> Health:
        """Return the health of the group: ready while one member is, lost once all are.

        Args:
            name: of the group.
            refuses_until: when members that refused calls take some again.
            now: the time.
        """
        parts = [self._health_of(member, refuses_until, now) for member in self._joined]
        state = best_state(parts)
        why = "" if state == "ready" else "no member takes work now"
        others = [
            Health(member, "lost", f"stays out: {reason}")
            for member, reason in self._stays_out.items()
        ]
        return Health(name, state, why, (*parts, *others))

    def _health_of(self, member: str, refuses_until: Mapping[str, float], now: float) -> Health:
        if member in self._has_left:
            return Health(member, "lost", self._has_left[member].public)
        if (absence := self._away.get(member)) is not None:
            return Health(member, "paused", _told(absence.why.public, absence, now))
        wait_s = refuses_until.get(member, 0.0) - now
        if wait_s > 0.0:
            return Health(member, "paused", f"it refused calls; asked again in {wait_s:.1f} s")
        return Health(member)

    def _state_of(self, member: str, now: float) -> str:
        if member in self._has_left:
            return f"has left: {self._has_left[member].text}"
        if (absence := self._away.get(member)) is not None:
            return f"paused: {_told(absence.why.text, absence, now)}"
        return str(self._joined[member])


def _told(why: str, absence: Absence, now: float) -> str:
    wait_s = max(0.0, absence.asked_at - now)
    return f"{why}; asked again in {wait_s:.1f} s"
