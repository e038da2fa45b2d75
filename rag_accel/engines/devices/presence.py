"""Members of a placement: those that take work, and those away until they have been probed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_accel.engines.devices.latency_fit import MemberLines
from rag_accel.engines.devices.plan import MemberBatch, MemberSpec, MemberState


class Presence:
    """Members in order of preference: present, or away.

    Args:
        specs: of the members, all present, the most preferred one first.
    """

    def __init__(self, specs: Sequence[MemberSpec]) -> None:
        self._order = {spec.name: at for at, spec in enumerate(specs)}
        #: those that take work, in order of preference
        self.present = {spec.name: _state(spec) for spec in specs}
        #: those that take none until they have been probed
        self.away: dict[str, MemberState] = {}

    @property
    def is_complete(self) -> bool:
        """Tell whether every member is present."""
        return len(self.present) == len(self._order)

    def states(self) -> Iterator[MemberState]:
        """Yield all members that are not lost."""
        yield from self.present.values()
        yield from self.away.values()

    def get(self, member: str) -> MemberState | None:
        """Return a member that is not lost."""
        return self.present.get(member) or self.away.get(member)

    def suspend(self, member: str) -> None:
        """Let a member take nothing until it joins again; its running steps go on."""
        state = self.present.pop(member, None)
        if state is not None:
            self.away[member] = state

    def rejoin(self, spec: MemberSpec) -> bool:
        """Let a member that was away take work, with a new estimate of its speed.

        False if it was not away.
        """
        old = self.away.pop(spec.name, None)
        if old is None:
            return False
        new = _state(spec)
        new.running = old.running
        found = {**self.present, spec.name: new}
        self.present = {name: found[name] for name in sorted(found, key=self._order.__getitem__)}
        return True

    def lose(self, member: str) -> MemberState | None:
        """Forget a member, and return it."""
        return self.present.pop(member, None) or self.away.pop(member, None)

    def free(self, batch: MemberBatch) -> MemberState | None:
        """Return the member that ran a batch, which it no longer does; None if it was given up."""
        state = self.get(batch.member)
        if state is None or batch not in state.running:
            return None
        state.running.remove(batch)
        return state


def _state(spec: MemberSpec) -> MemberState:
    return MemberState(spec, MemberLines(spec.alpha, spec.beta))
