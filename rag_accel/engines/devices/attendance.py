"""State of each member of a group in words: joined, stays out, paused, or has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rag_accel.engine_api import Health
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


@dataclass(slots=True)
class Presence:
    """A member that takes work, takes none until it has been probed, or takes none any more.

    Args:
        joined: its speed and fidelity; None if it never joined.
        is_awaited: it has never been reached.
        state: whether it takes work.
        why: it does not.
        probes: how many have failed since it takes none.
        asked_at: when the next one begins.
    """

    joined: Joined | None
    is_awaited: bool = False
    state: Literal["joined", "paused", "has left", "stays out"] = "joined"
    why: Reason = Reason("", "")
    probes: int = 0
    asked_at: float = 0.0

    @property
    def has_left(self) -> bool:
        """Tell whether it never takes work any more."""
        return self.state in ("has left", "stays out")

    def reason(self, now: float, *, is_public: bool = False) -> str:
        """Return why it takes no work, and when it may again."""
        why = self.why.public if is_public else self.why.text
        wait_s = max(0.0, self.asked_at - now)
        return f"{why}; asked again in {wait_s:.1f} s" if self.state == "paused" else why

    def line(self, now: float) -> str:
        """Return how near its vectors are, or why it takes no work."""
        return str(self.joined) if self.state == "joined" else f"{self.state}: {self.reason(now)}"


class Attendance(dict[str, Presence]):
    """The members of a group by name, those that stay out last.

    Args:
        joining: the members that joined and those that did not.
        limits: how long members wait for a probe.
    """

    def __init__(self, joining: Joining, limits: MemberLimits) -> None:
        super().__init__()
        self._limits = limits
        for joined in joining.joined:
            self[joined.spec.name] = Presence(joined, joined.spec.name in joining.unreached)
        for name, why in joining.excluded.items():
            self[name] = Presence(None, state="stays out", why=Reason(why, why))

    def suspend(self, member: str, why: Reason, now: float) -> float:
        """Note that a member is away, or still is; return the seconds until it is probed.

        A member on this machine's cores is probed at once: nothing there comes back by waiting.
        """
        found = self[member]
        found.probes = found.probes + 1 if found.state == "paused" else 0
        is_here = found.joined is not None and found.joined.spec.on_cores
        after_s = 0.0 if is_here else self._limits.pause_s(found.probes)
        found.state, found.why, found.asked_at = "paused", why, now + after_s
        return after_s

    def end(self, member: str, state: Literal["has left", "stays out"], why: Reason) -> None:
        """Note that a member takes no work any more."""
        found = self[member] = self.pop(member) if state == "stays out" else self[member]
        found.state, found.why = state, why

    def rejoin(self, joined: Joined) -> None:
        """Note that a member takes work again, or for the first time."""
        self[joined.spec.name] = Presence(joined)

    def lines(self, now: float) -> tuple[str, ...]:
        """Return a line for each member: how near its vectors are, or why it takes no part."""
        return tuple(f"{name}: {found.line(now)}" for name, found in self.items())

    def reasons(self, now: float, admitted: frozenset[str] | None) -> str:
        """Return why none of the members that joined, or of those admitted, takes work."""
        named = {name: found for name, found in self.items() if found.state != "stays out"}
        some = [name for name in named if admitted is None or name in admitted]
        return "; ".join(f"{name}: {named[name].line(now)}" for name in some)

    def health(self, refuses_until: Callable[[str], float], now: float) -> Iterator[Health]:
        """Yield the health of each member.

        Args:
            refuses_until: returns when a member that refused calls takes some again.
            now: the time.
        """
        for name, found in self.items():
            wait_s = refuses_until(name) - now
            why = found.reason(now, is_public=True)
            if found.has_left:
                is_out = found.state == "stays out"
                yield Health(name, "lost", f"stays out: {why}" if is_out else why)
            elif found.state == "paused":
                yield Health(name, "paused", why)
            elif wait_s > 0.0:
                yield Health(name, "paused", f"it refused calls; asked again in {wait_s:.1f} s")
            else:
                yield Health(name)
